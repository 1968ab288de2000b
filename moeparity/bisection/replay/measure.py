"""The replay ladder, from what the first pass saw of the candidate and of toggles with forced routes."""

from __future__ import annotations

from collections.abc import Iterator

from moeparity.bisection.observed import Observed
from moeparity.bisection.prepare import Plan
from moeparity.bisection.replay.report import Replay, ReplayedToggle, Rung
from moeparity.bisection.replay.words import RungKL, replay_reading
from moeparity.bisection.trials import alone, forced
from moeparity.engine.routes import IDS, NATURAL, REPLAYED
from moeparity.metrics.interval import token_mean
from moeparity.metrics.tokens import SequenceSums
from moeparity.plan.sides import CANDIDATE


def replay(plan: Plan, observed: Observed) -> Replay | None:
    """The ladder; None for a recipe that asks for none."""
    if not plan.recipe.replay:
        return None
    if not any(node.op.routes for node in plan.model.graph.nodes):
        return Replay(rungs=(), toggles=(), reading=("The model has no router, so there are no routes to force.",))
    rungs = tuple(_rungs(observed))
    if len(rungs) <= len(REPLAYED):
        said = "Routes cannot be forced: a user's function stands in place of a router, or an op refuses the mixture."
        return Replay(rungs=(), toggles=(), reading=(said,))
    told = [RungKL(forced=r.forced, kl=r.kl, change=(r.kl_change_low, r.kl_change_high), exact=r.exact) for r in rungs]
    return Replay(
        rungs=rungs,
        toggles=tuple(_toggles(plan, observed)),
        reading=tuple(replay_reading(told, flips=rungs[0].set_flips > 0)),
    )


def _rungs(observed: Observed) -> Iterator[Rung]:
    above = None
    for name, walker in [(NATURAL, CANDIDATE), *((what, forced(CANDIDATE, what)) for what in REPLAYED)]:
        if walker not in observed.logits.others:
            return
        sums = observed.logits.sums(walker)
        yield _rung(name, walker, sums, sums if above is None else above, observed)
        above = sums


def _rung(name: str, walker: str, sums: SequenceSums, above: SequenceSums, observed: Observed) -> Rung:
    change = token_mean(sums.kl_candidate_reference - above.kl_candidate_reference, sums.tokens)
    tokens, flips = float(sums.tokens.sum()), observed.routes.total(walker)
    assert flips is not None, "a model with a router whose routes are seen"
    return Rung(
        forced=name,
        kl=float(sums.kl_candidate_reference.sum()) / tokens,
        kl_change_low=change.low,
        kl_change_high=change.high,
        k3=float(sums.k3.sum()) / tokens,
        mean_abs_delta=float(sums.abs_delta.sum()) / tokens,
        max_abs_delta=float(sums.max_abs_delta.max()),
        set_flips=flips.set_flips / flips.tokens,
        slot_flips=flips.slot_flips / flips.tokens,
        exact=not bool(sums.unequal.any()),
    )


def _toggles(plan: Plan, observed: Observed) -> Iterator[ReplayedToggle]:
    for toggle in plan.tried:
        if toggle.parent is None:
            name = alone(toggle)
            yield ReplayedToggle(
                name=toggle.name, alone=_kl(observed, name), alone_forced=_kl(observed, forced(name, IDS))
            )


def _kl(observed: Observed, walker: str) -> float | None:
    """Nats per scored token; None where the walker did not run."""
    if walker not in observed.logits.others:
        return None
    sums = observed.logits.sums(walker)
    return float(sums.kl_candidate_reference.sum() / sums.tokens.sum())
