"""Passes over a plan: both sides, the trials of toggles and blocks and the local errors, seen by all observers."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from moeparity.attribution.accuracy import ORACLE
from moeparity.attribution.arrival import arrival_draws
from moeparity.attribution.effects import Effect, Trial
from moeparity.attribution.floor import floor_trials
from moeparity.attribution.sides import CANDIDATE, REFERENCE, Side
from moeparity.attribution.toggles import Toggle, mixed
from moeparity.engine.footprint import require
from moeparity.engine.lockstep import Counts, Observer, Walker, run
from moeparity.engine.memory import Memory, Peak
from moeparity.engine.routes import IDS, REPLAYED, ROUTER, Forced, Replayed, replayed_plan
from moeparity.engine.schedule import micro_batches
from moeparity.engine.work import kernel_settings
from moeparity.errors import SpecError
from moeparity.graph.graph import Graph, Node
from moeparity.observe.classes import Classes
from moeparity.observe.distributions import Distributions
from moeparity.observe.divergence import Error
from moeparity.observe.envelope import Band, Envelope, Enveloped, Settings
from moeparity.observe.flips import Census, FlipObserver, Margins, Ranking
from moeparity.observe.logprobs import SequenceSums
from moeparity.observe.observers import Changes, Divergence, Logits, NodeRecord, Routes
from moeparity.observe.oracle import Distance, Distances, NodeDistances, Truth
from moeparity.observe.records import Records
from moeparity.observe.routing import Drift, Flips
from moeparity.observe.statistics import token_mean
from moeparity.plan import Plan
from moeparity.progress import Callback
from moeparity.resume.codec import Codec

FLOOR = "floor: "
"""What the names of the floor's trials start with."""

ARRIVAL = "arrival order: "
"""What the names of further draws of sums in arrival order start with."""

SHADOW = "candidate's numerics on the reference's inputs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What the passes over a plan saw; `divergence` is None where a pass only measured further trials.

    `census` is None there too, and without routers.
    """

    divergence: Divergence | None
    truth: Truth | None
    changes: Changes
    routes: Routes
    logits: Logits
    counts: Counts
    naive_evaluations: int
    seconds: float
    records: Records | None
    classes: Classes | None
    distributions: Distributions | None
    census: Census | None
    envelope: dict[str, Enveloped] | None
    memory: Memory

    def joined(self, further: Observed) -> Observed:
        """Both together, `further` being a later pass over the same plan with other trials."""
        return Observed(
            divergence=self.divergence,
            truth=self.truth,
            changes=self.changes.joined(further.changes),
            routes=self.routes.joined(further.routes),
            logits=self.logits.joined(further.logits),
            counts=self.counts.joined(further.counts),
            naive_evaluations=self.naive_evaluations + further.naive_evaluations,
            seconds=self.seconds + further.seconds,
            records=self.records,
            classes=self.classes,
            distributions=self.distributions,
            census=self.census,
            envelope=self.envelope,
            memory=self.memory.joined(further.memory),
        )


def observe(plan: Plan, toggles: Sequence[Toggle], *, first: bool = True, progress: Callback | None = None) -> Observed:
    """One pass over the weights: both sides and these toggles' trials; the `first` also takes the local errors."""
    started = time.perf_counter()
    trials = {**_trials(plan, toggles), **(_floor(plan) if first and plan.recipe.floor else {})}
    trials |= _arrival(plan) if first else {}
    replays = _replays(plan, toggles) if first and plan.recipe.replay else {}
    walkers = [_walker(plan, REFERENCE, plan.reference), _walker(plan, CANDIDATE, plan.candidate)]
    walkers += [_walker(plan, name, side) for name, (side, _) in trials.items()]
    walkers += [_walker(plan, name, side, routes=Forced(of=REFERENCE, what=w)) for name, (side, w) in replays.items()]
    names = [walker.name for walker in walkers][1:]
    changes = Changes([*((name, base) for name, (_, base) in trials.items()), *_against_reference(trials)])
    tokens, mask = (x.to(plan.model.device) for x in (plan.tokens.input_ids, plan.tokens.attention_mask))
    routes = Routes(REFERENCE, names, mask)
    scored = plan.tokens.loss_mask.to(plan.model.device)
    logits = Logits(plan.model.graph.output, REFERENCE, names, tokens, scored, plan.recipe.tokens.sampler)
    observers: list[Observer] = [changes, routes, logits]
    divergence = truth = None
    if first and plan.oracle is not None:
        against = Logits(plan.model.graph.output, ORACLE, (REFERENCE, CANDIDATE), tokens, scored, logits.sampled_from)
        truth = Truth(distances=Distances(REFERENCE, CANDIDATE, ORACLE), logits=against)
        observers.append(truth)
        walkers.append(_walker(plan, ORACLE, plan.oracle))
    if first:
        divergence = Divergence(REFERENCE, CANDIDATE, SHADOW)
        observers.append(divergence)
    if first and plan.attribution:
        walkers.append(_walker(plan, SHADOW, plan.candidate, inputs_of=REFERENCE))
    records, classes = (_records(plan), _classes(plan)) if first else (None, None)
    whole = Distributions(plan.model.graph.output, REFERENCE, CANDIDATE, tokens, scored) if first else None
    flips = _flip_observer(plan, list(trials)) if first else None
    envelope = _envelope(plan) if first else None
    observers += [observer for observer in (records, classes, whole, flips, envelope) if observer is not None]
    weights = plan.model.weights
    footprint = require(walkers, weights, *tokens.shape, limit=plan.memory_limit)
    with Peak(weights.device) as peak:
        counts = run(walkers, weights, tokens, observers, attention_mask=mask, progress=progress)
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


def codec(graph: Graph) -> Codec:
    """Writes and reads what a pass saw of a graph."""
    parts = (NodeRecord, Error, Distances, NodeDistances, Distance, Flips, SequenceSums, Counts, Memory)
    observers = (Divergence, Truth, Changes, Routes, Logits, Records, Classes, Distributions)
    return Codec(
        [Observed, *observers, *parts, Census, Drift, Margins, Enveloped, Band],
        {node.name: node for node in graph.nodes},
    )


def measured(toggle: Toggle, observed: Observed) -> Effect:
    """What a toggle's two trials did."""
    trial = _trial(restored(toggle), CANDIDATE, observed)
    change = (-math.inf, math.inf)
    if trial is not None:
        with_it, without_it = observed.logits.sums(CANDIDATE), observed.logits.sums(restored(toggle))
        paired = token_mean(without_it.kl_candidate_reference - with_it.kl_candidate_reference, with_it.tokens)
        change = (paired.low, paired.high)
    return Effect(
        toggle=toggle,
        alone=_trial(alone(toggle), REFERENCE, observed),
        restored=trial,
        change=change,
        restores_all=trial is not None and not observed.changes.nodes[restored(toggle), REFERENCE],
    )


def total_kl(observed: Observed) -> float:
    """KL(candidate || reference) in nats per scored token."""
    sums = observed.logits.sums(CANDIDATE)
    return float(sums.kl_candidate_reference.sum() / sums.tokens.sum())


def alone(toggle: Toggle) -> str:
    """The name of the trial in which the reference has this one choice of the candidate."""
    return f"{toggle.name} alone"


def restored(toggle: Toggle) -> str:
    """The name of the trial in which the candidate has this one choice of the reference."""
    return f"{toggle.name} restored"


def forced(walker: str, what: Replayed) -> str:
    """The name of a side, or of a trial, with this much of the reference's routes."""
    return f"{walker}, {what} forced"


def _records(plan: Plan) -> Records | None:
    """Looks at what an engine recorded of the tokens; None where it recorded nothing."""
    if not plan.tokens.has_records:
        return None
    tokens, device = plan.tokens, plan.model.device
    return Records(
        output=plan.model.graph.output,
        walkers=(REFERENCE, CANDIDATE),
        input_ids=tokens.input_ids.to(device),
        scored=tokens.loss_mask.to(device),
        logprobs=None if tokens.logprobs is None else tokens.logprobs.to(device),
        routed_experts=None if tokens.routed_experts is None else tokens.routed_experts.to(device),
    )


def _classes(plan: Plan) -> Classes | None:
    """Takes the metrics of each class of tokens; None where they have no labels."""
    tokens, device = plan.tokens, plan.model.device
    if tokens.labels is None:
        return None
    return Classes(
        output=plan.model.graph.output,
        reference=REFERENCE,
        candidate=CANDIDATE,
        input_ids=tokens.input_ids.to(device),
        loss_mask=tokens.loss_mask.to(device),
        attention_mask=tokens.attention_mask.to(device),
        labels=tokens.labels.to(device),
        count=len(tokens.label_names),
        sampled_from=plan.recipe.tokens.sampler,
    )


def _flip_observer(plan: Plan, trials: list[str]) -> FlipObserver | None:
    """Looks at the candidate's routing flips; None without routers."""
    routers = [node for node in plan.model.graph.nodes if node.op.name == "router"]
    if not routers:
        return None
    tokens, device = plan.tokens, plan.model.device
    sides = (plan.reference, plan.candidate)
    return FlipObserver(
        (REFERENCE, CANDIDATE),
        {node.name: (ranking(plan, sides[0], node), ranking(plan, sides[1], node)) for node in routers},
        [-1 if node.layer is None else node.layer for node in routers],
        trials,
        output=plan.model.graph.output,
        input_ids=tokens.input_ids.to(device),
        loss_mask=tokens.loss_mask.to(device),
        attention_mask=tokens.attention_mask.to(device),
        sampled_from=plan.recipe.tokens.sampler,
    )


def ranking(plan: Plan, side: Side, node: Node) -> Ranking:
    """How a side's router ranks. The weights are its correction bias alone, which is small enough to be kept."""
    how = _called(plan, side)
    return Ranking(w=how.weights(node), p=node.params, at=how.at(node))


def _envelope(plan: Plan) -> Envelope | None:
    """Draws legal orders where the candidate's own numerics differ; None where the recipe asks for none."""
    if not plan.recipe.envelope or not plan.attribution:
        return None
    return Envelope(
        walkers=(REFERENCE, SHADOW),
        sides=(_called(plan, plan.reference), _called(plan, plan.candidate)),
        draws=plan.recipe.envelope,
        length=plan.tokens.input_ids.shape[1],
    )


def _called(plan: Plan, side: Side) -> Settings:
    """How a side's kernels are called outside of a pass."""
    bound = side.plan
    return Settings(
        at=lambda node: kernel_settings(node, {**bound.told_to(node), **bound.active(node)}),
        weights=lambda node: plan.model.weights.node(node, bound.dtype_of(node.name)),
    )


def _trials(plan: Plan, toggles: Iterable[Toggle]) -> dict[str, tuple[Side, str]]:
    """Every trial by name, with the side it is made from; mixtures that an op refuses to run are left out."""
    trials = {}
    for toggle in toggles:
        with suppress(SpecError):
            trials[alone(toggle)] = (mixed(plan.reference, [toggle], plan.candidate), REFERENCE)
        with suppress(SpecError):
            trials[restored(toggle)] = (mixed(plan.candidate, [toggle], plan.reference), CANDIDATE)
    return trials


def _floor(plan: Plan) -> dict[str, tuple[Side, str]]:
    """The reference against itself."""
    trials = floor_trials(plan.reference, len(plan.tokens.input_ids))
    return {f"{FLOOR}{name}": (side, REFERENCE) for name, side in trials.items()}


def _arrival(plan: Plan) -> dict[str, tuple[Side, str]]:
    """Further draws of a side that adds in order of arrival."""
    sides = {REFERENCE: plan.reference, CANDIDATE: plan.candidate}
    draws = ((name, i, drawn) for name, side in sides.items() for i, drawn in enumerate(arrival_draws(side), 1))
    return {f"{ARRIVAL}{name} {i}": (drawn, name) for name, i, drawn in draws}


def _replays(plan: Plan, toggles: Iterable[Toggle]) -> dict[str, tuple[Side, Replayed]]:
    """The candidate on every rung of the replay ladder, and each toggle alone with the ids forced.

    Empty without a router; what cannot have its routes forced is left out.
    """
    if all(node.op.name != ROUTER for node in plan.model.graph.nodes):
        return {}
    asked: list[tuple[str, Side, Replayed]] = [(CANDIDATE, plan.candidate, what) for what in REPLAYED]
    alone_trials = _trials(plan, (toggle for toggle in toggles if toggle in plan.tried))
    asked += [(name, side, IDS) for name, (side, base) in alone_trials.items() if base == REFERENCE]
    found: dict[str, tuple[Side, Replayed]] = {}
    for name, side, what in asked:
        with suppress(SpecError):
            replayed_plan(side.plan, plan.reference.plan)
            found[forced(name, what)] = (side, what)
    return found


def _against_reference(trials: dict[str, tuple[Side, str]]) -> list[tuple[str, str]]:
    """Restored trials beside the reference: one that has all its bits is exact, however small a metric is."""
    return [(name, REFERENCE) for name, (_, base) in trials.items() if base == CANDIDATE]


def _trial(name: str, base: str, observed: Observed) -> Trial | None:
    if (name, base) not in observed.changes.nodes:
        return None
    sums = observed.logits.sums(name)
    tokens = float(sums.tokens.sum())
    flips = observed.routes.total(name)
    return Trial(
        kl=float(sums.kl_candidate_reference.sum()) / tokens,
        k3=float(sums.k3.sum()) / tokens,
        flipped_routes=flips.set_flips / flips.tokens if flips else None,
        changed_nodes=len(observed.changes.nodes[name, base]),
    )


def _walker(plan: Plan, name: str, side: Side, inputs_of: str | None = None, routes: Forced | None = None) -> Walker:
    return Walker(
        name=name,
        plan=side.plan,
        micro_batch=side.micro_batch,
        inputs_of=inputs_of,
        routes=routes,
        functions=plan.functions,
    )
