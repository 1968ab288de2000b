"""The replay ladder: the candidate, and each toggle alone, with more and more of the reference's routes forced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final

from moeparity.bisection.context import Context, Measure
from moeparity.bisection.observed import Observed
from moeparity.bisection.replay.data import PlantedTrap, Replay, ReplayedToggle, Rung
from moeparity.bisection.replay.show import replay_reading
from moeparity.bisection.replay.traps import TRAPS
from moeparity.bisection.study import Study
from moeparity.bisection.trials import Trial, TrialKey, Trials, alone
from moeparity.engine.routes import (
    IDS,
    IDS_AND_KEYS,
    KEYS,
    LOGITS,
    NATURAL,
    ORDER,
    REPLAYED,
    WEIGHTS,
    Forced,
    Routes,
    replayed_plan,
)
from moeparity.engine.walker import WalkerName
from moeparity.errors import SpecError
from moeparity.metrics.interval import token_mean
from moeparity.metrics.tokens import SequenceSums
from moeparity.plan.schedule.steps import MicroBatches
from moeparity.plan.sides import CANDIDATE, REFERENCE

_ABOVE: Final[dict[Routes, Routes]] = {WEIGHTS: IDS, ORDER: WEIGHTS, IDS_AND_KEYS: IDS}
"""The rung with which another one than the natural is compared, to say what it takes over more."""


def trials(study: Study, trials: Trials) -> Trials:
    """Trials with forced routes; mixtures whose routes cannot be forced are left out.

    None without a router, or if the recipe asks for no ladder.
    """
    if not study.recipe.replay or not any(node.op.role.routes for node in study.model.graph.nodes):
        return {}
    whole = {toggle.name for toggle in study.trial_toggles}
    keys = (KEYS, IDS_AND_KEYS) if _may_force_keys(study) else ()
    sides = {TrialKey("candidate", forced=routes): study.candidate for routes in (*REPLAYED, LOGITS, *keys)}
    sides |= {
        replace(key, forced=IDS): trial.side for key, trial in trials.items() if key.kind == "alone" and key.of in whole
    }
    forced_trials: Trials = {}
    for key, side in sides.items():
        with suppress(SpecError):
            replayed_plan(side.plan, study.reference.plan)
            assert key.forced != "natural"
            routes = Forced(of=REFERENCE, replayed=key.forced)
            forced_trials[key] = Trial(
                side=side, base=CANDIDATE if key.kind == "candidate" else REFERENCE, routes=routes
            )
    return forced_trials


def measure(of: Context) -> Replay | None:
    """The ladder; None if the recipe asks for none."""
    study, observed = of.study, of.observed
    if not study.recipe.replay:
        return None
    if not any(node.op.role.routes for node in study.model.graph.nodes):
        return Replay(rungs=(), toggles=(), reading=("The model has no router, so there are no routes to force.",))
    rungs = tuple(_rungs(observed))
    if len(rungs) <= len(REPLAYED):
        reason = "Routes cannot be forced: a user's function stands in place of a router, or an op refuses the mixture."
        return Replay(rungs=(), toggles=(), reading=(reason,))
    return Replay(
        rungs=rungs,
        toggles=tuple(_toggles(study, observed)),
        reading=tuple(replay_reading(rungs, flips=rungs[0].set_flips > 0)),
        traps=tuple(_traps(observed)),
    )


def _may_force_keys(study: Study) -> bool:
    """Whether there is an indexer, and both sides count keys from the same one."""
    steps = [study.walked(side) for side in study.sides.values()]
    has_indexer = any(node.op.role.picks for node in study.model.graph.nodes)
    return has_indexer and all(isinstance(of_side, MicroBatches) for of_side in steps)


def _rungs(observed: Observed) -> Iterator[Rung]:
    rungs: list[tuple[Routes, WalkerName]] = [(NATURAL, CANDIDATE)]
    rungs += [(routes, TrialKey("candidate", forced=routes)) for routes in (*REPLAYED, LOGITS, KEYS, IDS_AND_KEYS)]
    of_rung: dict[Routes, SequenceSums] = {}
    for routes, walker in rungs:
        if walker not in observed.logits.walkers:
            return
        above = of_rung[_ABOVE.get(routes, NATURAL)] if of_rung else observed.logits.sums(CANDIDATE)
        of_rung[routes] = observed.logits.sums(walker)
        yield _rung(routes, walker, of_rung[routes], above, observed)


def _rung(routes: Routes, walker: WalkerName, sums: SequenceSums, sums_above: SequenceSums, observed: Observed) -> Rung:
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


def _traps(observed: Observed) -> Iterator[PlantedTrap]:
    for planted in observed.of_search(TRAPS) or ():
        sums, right = planted.sums, observed.logits.sums(TrialKey("candidate", forced=planted.kind))
        price = token_mean(sums.kl_candidate_reference - right.kl_candidate_reference, sums.tokens)
        natural = observed.logits.sums(CANDIDATE).kl_candidate_reference
        yield PlantedTrap(
            name=planted.name,
            kind=planted.kind,
            kl=sums.mean("kl_candidate_reference"),
            price_low=price.low,
            price_high=price.high,
            beyond_natural=token_mean(sums.kl_candidate_reference - natural, sums.tokens).low,
            k3=sums.mean("k3"),
            mean_abs_delta=sums.mean("abs_delta"),
            max_abs_delta=float(sums.max_abs_delta.max()),
        )


def _toggles(study: Study, observed: Observed) -> Iterator[ReplayedToggle]:
    for toggle in study.whole_toggles:
        key, forced = alone(toggle), replace(alone(toggle), forced=IDS)
        yield ReplayedToggle(name=toggle.name, alone=_kl(observed, key), alone_forced=_kl(observed, forced))


def _kl(observed: Observed, key: TrialKey) -> float | None:
    """KL in nats per scored token; None if the walker did not run."""
    return observed.logits.sums(key).mean("kl_candidate_reference") if key in observed.logits.walkers else None


MEASURE = Measure(gives=Replay, measure=measure, trials=trials, search=TRAPS)
