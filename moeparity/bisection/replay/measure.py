"""The replay ladder, from what the first pass saw of the candidate and of toggles with forced routes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from moeparity.bisection.context import Context
from moeparity.bisection.observed import Observed
from moeparity.bisection.plan import Plan
from moeparity.bisection.replay.data import Replay, ReplayedToggle, Rung
from moeparity.bisection.replay.show import replay_reading
from moeparity.bisection.trials import TrialKey, alone
from moeparity.engine.routes import IDS, NATURAL, REPLAYED, Routes
from moeparity.engine.walker import Name
from moeparity.metrics.interval import token_mean
from moeparity.metrics.tokens import SequenceSums
from moeparity.plan.sides import CANDIDATE


def measure(of: Context) -> Replay | None:
    """The ladder."""
    return replay(of.plan, of.observed)


def replay(plan: Plan, observed: Observed) -> Replay | None:
    """The ladder; None if the recipe asks for none."""
    if not plan.recipe.replay:
        return None
    if not any(node.op.routes for node in plan.model.graph.nodes):
        return Replay(rungs=(), toggles=(), reading=("The model has no router, so there are no routes to force.",))
    rungs = tuple(_rungs(observed))
    if len(rungs) <= len(REPLAYED):
        reason = "Routes cannot be forced: a user's function stands in place of a router, or an op refuses the mixture."
        return Replay(rungs=(), toggles=(), reading=(reason,))
    return Replay(
        rungs=rungs,
        toggles=tuple(_toggles(plan, observed)),
        reading=tuple(replay_reading(rungs, flips=rungs[0].set_flips > 0)),
    )


def _rungs(observed: Observed) -> Iterator[Rung]:
    sums_above = None
    rungs: list[tuple[Routes, Name]] = [(NATURAL, CANDIDATE)]
    rungs += [(routes, TrialKey("candidate", forced=routes)) for routes in REPLAYED]
    for routes, walker in rungs:
        if walker not in observed.logits.walkers:
            return
        sums = observed.logits.sums(walker)
        yield _rung(routes, walker, sums, sums if sums_above is None else sums_above, observed)
        sums_above = sums


def _rung(routes: Routes, walker: Name, sums: SequenceSums, sums_above: SequenceSums, observed: Observed) -> Rung:
    change = token_mean(sums.kl_candidate_reference - sums_above.kl_candidate_reference, sums.tokens)
    flips = observed.routes.total(walker)
    assert flips is not None, "a model with a router whose routes are seen"
    return Rung(
        forced=routes,
        kl=sums.mean("kl_candidate_reference"),
        kl_change_low=change.low,
        kl_change_high=change.high,
        k3=sums.mean("k3"),
        mean_abs_delta=sums.mean("abs_delta"),
        max_abs_delta=float(sums.max_abs_delta.max()),
        set_flips=flips.set_flips / flips.tokens,
        slot_flips=flips.slot_flips / flips.tokens,
        exact=not bool(sums.unequal.any()),
    )


def _toggles(plan: Plan, observed: Observed) -> Iterator[ReplayedToggle]:
    for toggle in plan.trial_toggles:
        if toggle.parent is None:
            key = alone(toggle)
            yield ReplayedToggle(
                name=toggle.name, alone=_kl(observed, key), alone_forced=_kl(observed, replace(key, forced=IDS))
            )


def _kl(observed: Observed, key: TrialKey) -> float | None:
    """KL in nats per scored token; None if the walker did not run."""
    return observed.logits.sums(key).mean("kl_candidate_reference") if key in observed.logits.walkers else None
