"""The verdict on one draw of a side, and what further draws of sums in arrival order say beside it."""

from __future__ import annotations

from collections.abc import Iterator

from moeparity.bisection.arrival.words import Drawn, agreed, arrival_reading
from moeparity.bisection.floor import report as truth
from moeparity.bisection.floor.measure import interval
from moeparity.bisection.observed import Observed
from moeparity.bisection.prepare import Plan
from moeparity.bisection.trials import ARRIVAL
from moeparity.metrics.interval import Interval, Judgement, judge, sequence_mean, token_mean
from moeparity.metrics.tokens import SequenceSums
from moeparity.plan.sides import CANDIDATE, REFERENCE


def judged(plan: Plan, sums: SequenceSums) -> tuple[Interval, Judgement]:
    """The gate's metric of one walker against the reference, and the verdict on it."""
    gate = plan.recipe.gate
    found = (token_mean if gate.reduce == "token" else sequence_mean)(sums.k3, sums.tokens)
    equal, nonfinite = not bool(sums.unequal.any()), int(sums.nonfinite.sum())
    return found, judge(found, gate.below, bit_equal=equal, nonfinite=nonfinite)


def arrival(plan: Plan, observed: Observed) -> truth.Arrival | None:
    """All draws of the sides that add in order of arrival; None where neither does."""
    of = {side: list(_draws(plan, observed, side)) for side in (REFERENCE, CANDIDATE)}
    if not any(of.values()):
        return None
    own = [truth.ArrivalDraw(side=CANDIDATE, draw=0, value=interval(judged(plan, observed.logits.sums(CANDIDATE))[0]))]
    draws = [*of[REFERENCE], *own, *of[CANDIDATE]] if of[CANDIDATE] else of[REFERENCE]
    statuses = [judged(plan, observed.logits.sums(CANDIDATE))[1].status]
    statuses += [judged(plan, observed.logits.sums(_name(CANDIDATE, d.draw)))[1].status for d in of[CANDIDATE]]
    candidate = [Drawn(value=d.value.estimate, status=s) for d, s in zip([*own, *of[CANDIDATE]], statuses, strict=True)]
    reference = [Drawn(value=d.value.estimate, status=None) for d in of[REFERENCE]]
    told = candidate if of[CANDIDATE] else []
    return truth.Arrival(
        draws=tuple(draws),
        disputed=not agreed(candidate),
        reading=tuple(arrival_reading(told, reference, plan.recipe.gate.metric)),
    )


def _name(side: str, draw: int) -> str:
    return f"{ARRIVAL}{side} {draw}"


def _draws(plan: Plan, observed: Observed, side: str) -> Iterator[truth.ArrivalDraw]:
    draw = 1
    while (_name(side, draw), side) in observed.changes.nodes:
        value, _ = judged(plan, observed.logits.sums(_name(side, draw)))
        yield truth.ArrivalDraw(side=side, draw=draw, value=interval(value))
        draw += 1
