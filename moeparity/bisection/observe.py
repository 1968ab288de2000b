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
from moeparity.engine.lockstep import Counts, Observer, Walker, run
from moeparity.engine.memory import Memory, Peak
from moeparity.engine.routes import Forced, Replayed
from moeparity.plan.sides import CANDIDATE, REFERENCE, Side
from moeparity.plan.toggles import Toggle
from moeparity.progress import Callback


def observe(plan: Plan, toggles: Sequence[Toggle], *, first: bool = True, progress: Callback | None = None) -> Observed:
    """One pass over the weights: both sides and these toggles' trials; the `first` also takes the local errors."""
    started = time.perf_counter()
    ready = Pass(plan, toggles, first=first)
    weights, tokens, mask = plan.model.weights, ready.tokens, ready.mask
    footprint = require(ready.walkers, weights, *tokens.shape, limit=plan.memory_limit)
    with Peak(weights.device) as peak:
        work = footprint.work
        counts = run(ready.walkers, weights, tokens, ready.observers, attention_mask=mask, work=work, progress=progress)
    memory = Memory(estimated=footprint.total, held_before=peak.before, peak=peak.bytes)
    return ready.observed(counts, memory, time.perf_counter() - started)


class Pass:
    """A pass made ready: its walkers, and the observers that see it."""

    def __init__(self, plan: Plan, toggles: Sequence[Toggle], *, first: bool = True) -> None:
        self.graph = plan.model.graph
        trials = {**named.toggle_trials(plan, toggles), **(named.floor(plan) if first and plan.recipe.floor else {})}
        trials |= named.arrival(plan) if first else {}
        self.walkers = _walkers(plan, trials, named.replays(plan, toggles) if first and plan.recipe.replay else {})
        names = [walker.name for walker in self.walkers][1:]
        self.tokens, self.mask = (x.to(plan.model.device) for x in (plan.tokens.input_ids, plan.tokens.attention_mask))
        scored = plan.tokens.loss_mask.to(plan.model.device)
        self.changes = Changes([*((n, base) for n, (_, base) in trials.items()), *named.against_reference(trials)])
        self.routes = Routes(REFERENCE, names, self.mask)
        sampler, scores = plan.recipe.tokens.sampler, self.graph.scores
        self.logits = Logits(scores, REFERENCE, names, self.tokens, scored, sampler)
        self.divergence = Divergence(REFERENCE, CANDIDATE, SHADOW) if first else None
        self.truth = None
        if first and plan.oracle is not None:
            against = Logits(scores, ORACLE, (REFERENCE, CANDIDATE), self.tokens, scored, sampler)
            self.truth = Truth(distances=Distances(REFERENCE, CANDIDATE, ORACLE), logits=against)
            self.walkers.append(_walker(plan, ORACLE, plan.oracle))
        if first and plan.attribution:
            self.walkers.append(_walker(plan, SHADOW, plan.candidate, inputs_of=REFERENCE))
        self.records, self.classes = (made.records(plan), made.classes(plan)) if first else (None, None)
        self.distributions = Distributions(scores, REFERENCE, CANDIDATE, self.tokens, scored) if first else None
        self.flips = made.flip_observer(plan, list(trials)) if first else None
        self.envelope = made.envelope(plan) if first else None

    @property
    def observers(self) -> list[Observer]:
        """What sees every node of the pass."""
        always: list[Observer] = [self.changes, self.routes, self.logits]
        sides = (self.truth, self.divergence, self.records, self.classes, self.distributions)
        return [*always, *(seen for seen in (*sides, self.flips, self.envelope) if seen is not None)]

    def observed(self, counts: Counts, memory: Memory, seconds: float) -> Observed:
        """What the observers have seen, and what the pass cost."""
        sequences = len(self.tokens)
        batches = sum(len(micro_batches(sequences, walker.micro_batch)) for walker in self.walkers)
        return Observed(
            divergence=self.divergence,
            truth=self.truth,
            changes=self.changes,
            routes=self.routes,
            logits=self.logits,
            counts=counts,
            naive_evaluations=batches * len(self.graph.nodes),
            seconds=seconds,
            records=self.records,
            classes=self.classes,
            distributions=self.distributions,
            census=None if self.flips is None else self.flips.census,
            envelope=None if self.envelope is None else self.envelope.found,
            memory=memory,
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
