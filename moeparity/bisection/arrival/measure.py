"""The verdict on one draw of a side, and what further draws of sums in arrival order say beside it."""

from __future__ import annotations

from collections.abc import Iterator

from moeparity.bisection.arrival.words import Drawn, agreed, arrival_reading
from moeparity.bisection.floor import report as truth
from moeparity.bisection.observed import Observed
from moeparity.bisection.prepare import Plan
from moeparity.bisection.trials import ARRIVAL
from moeparity.bisection.verdict.measure import judged
from moeparity.plan.sides import CANDIDATE, REFERENCE


def arrival(plan: Plan, observed: Observed) -> truth.Arrival | None:
    """All draws of the sides that add in order of arrival; None where neither does."""
    of = {side: list(_draws(plan, observed, side)) for side in (REFERENCE, CANDIDATE)}
    if not any(of.values()):
        return None
    verdict = judged(plan, observed.logits.sums(CANDIDATE))
    own = [truth.ArrivalDraw(side=CANDIDATE, draw=0, value=verdict.value)]
    draws = [*of[REFERENCE], *own, *of[CANDIDATE]] if of[CANDIDATE] else of[REFERENCE]
    statuses = [verdict.status]
    statuses += [judged(plan, observed.logits.sums(_name(CANDIDATE, d.draw))).status for d in of[CANDIDATE]]
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
        verdict = judged(plan, observed.logits.sums(_name(side, draw)))
        yield truth.ArrivalDraw(side=side, draw=draw, value=verdict.value)
        draw += 1
