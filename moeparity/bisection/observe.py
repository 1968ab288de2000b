"""One pass over a plan: both sides, the trials of toggles and blocks and the local errors, seen by all observers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from moeparity.bisection import trials as named
from moeparity.bisection import watch as made
from moeparity.bisection.distribution.observe import Distributions
from moeparity.bisection.observed import Observed
from moeparity.bisection.observers import Changes, Divergence, Logits, Routes
from moeparity.bisection.oracle.observe import Distances, Truth
from moeparity.bisection.oracle.words import ORACLE
from moeparity.bisection.prepare import Plan
from moeparity.bisection.trials import SHADOW
from moeparity.engine.batches import micro_batches
from moeparity.engine.footprint import require
from moeparity.engine.lockstep import Observer, Walker, run
from moeparity.engine.memory import Memory, Peak
from moeparity.engine.routes import Forced, Replayed
from moeparity.plan.sides import CANDIDATE, REFERENCE, Side
from moeparity.plan.toggles import Toggle
from moeparity.progress import Callback


def observe(plan: Plan, toggles: Sequence[Toggle], *, first: bool = True, progress: Callback | None = None) -> Observed:
    """One pass over the weights: both sides and these toggles' trials; the `first` also takes the local errors."""
    started = time.perf_counter()
    trials = {**named.toggle_trials(plan, toggles), **(named.floor(plan) if first and plan.recipe.floor else {})}
    trials |= named.arrival(plan) if first else {}
    walkers = _walkers(plan, trials, named.replays(plan, toggles) if first and plan.recipe.replay else {})
    names = [walker.name for walker in walkers][1:]
    changes = Changes([*((name, base) for name, (_, base) in trials.items()), *named.against_reference(trials)])
    tokens, mask = (x.to(plan.model.device) for x in (plan.tokens.input_ids, plan.tokens.attention_mask))
    routes = Routes(REFERENCE, names, mask)
    scored = plan.tokens.loss_mask.to(plan.model.device)
    logits = Logits(plan.model.graph.scores, REFERENCE, names, tokens, scored, plan.recipe.tokens.sampler)
    observers: list[Observer] = [changes, routes, logits]
    divergence = truth = None
    if first and plan.oracle is not None:
        against = Logits(plan.model.graph.scores, ORACLE, (REFERENCE, CANDIDATE), tokens, scored, logits.sampled_from)
        truth = Truth(distances=Distances(REFERENCE, CANDIDATE, ORACLE), logits=against)
        observers.append(truth)
        walkers.append(_walker(plan, ORACLE, plan.oracle))
    if first:
        divergence = Divergence(REFERENCE, CANDIDATE, SHADOW)
        observers.append(divergence)
    if first and plan.attribution:
        walkers.append(_walker(plan, SHADOW, plan.candidate, inputs_of=REFERENCE))
    records, classes = (made.records(plan), made.classes(plan)) if first else (None, None)
    whole = Distributions(plan.model.graph.scores, REFERENCE, CANDIDATE, tokens, scored) if first else None
    flips = made.flip_observer(plan, list(trials)) if first else None
    envelope = made.envelope(plan) if first else None
    observers += [observer for observer in (records, classes, whole, flips, envelope) if observer is not None]
    weights = plan.model.weights
    footprint = require(walkers, weights, *tokens.shape, limit=plan.memory_limit)
    with Peak(weights.device) as peak:
        work = footprint.work
        counts = run(walkers, weights, tokens, observers, attention_mask=mask, work=work, progress=progress)
    batches = sum(len(micro_batches(len(tokens), walker.micro_batch)) for walker in walkers)
    return Observed(
        divergence=divergence,
        truth=truth,
        changes=changes,
        routes=routes,
        logits=logits,
        counts=counts,
        naive_evaluations=batches * len(plan.model.graph.nodes),
        seconds=time.perf_counter() - started,
        records=records,
        classes=classes,
        distributions=whole,
        census=None if flips is None else flips.census,
        envelope=None if envelope is None else envelope.found,
        memory=Memory(estimated=footprint.total, held_before=peak.before, peak=peak.bytes),
    )


def _walkers(
    plan: Plan, trials: Mapping[str, tuple[Side, str]], replays: Mapping[str, tuple[Side, Replayed]]
) -> list[Walker]:
    """Both sides, the trials, and the candidates whose routes are forced."""
    sides = {REFERENCE: plan.reference, CANDIDATE: plan.candidate}
    sides |= {name: side for name, (side, _) in trials.items()}
    free = [_walker(plan, name, side) for name, side in sides.items()]
    forced = [(name, side, Forced(of=REFERENCE, what=what)) for name, (side, what) in replays.items()]
    return [*free, *(_walker(plan, name, side, routes=routes) for name, side, routes in forced)]


def _walker(plan: Plan, name: str, side: Side, inputs_of: str | None = None, routes: Forced | None = None) -> Walker:
    return Walker(
        name=name,
        plan=side.plan,
        micro_batch=side.micro_batch,
        inputs_of=inputs_of,
        routes=routes,
        functions=plan.functions,
    )
