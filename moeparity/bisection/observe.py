"""One pass over a plan: both sides, the trials of toggles and blocks and the local errors, seen by all sections."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from moeparity.bisection.observed import Cost, Observed
from moeparity.bisection.observers import Changes, Logits, Routes
from moeparity.bisection.oracle.side import ORACLE
from moeparity.bisection.plan import Plan
from moeparity.bisection.sections import modules
from moeparity.bisection.trials import Trials, shadow, sides, toggle_trials, walker
from moeparity.engine.lockstep import Counts
from moeparity.engine.memory import Memory, Peak
from moeparity.engine.view import NodeView, Observer
from moeparity.engine.walker import Walker
from moeparity.plan.sides import CANDIDATE, REFERENCE
from moeparity.plan.toggles import Toggle
from moeparity.progress import Callback


class SectionObserver(Protocol):
    """What looks at the first pass for a section."""

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        ...

    @property
    def result(self) -> Any:
        """What is kept of the pass."""
        ...

    def part(self, rows: slice) -> Any:
        """What was seen of some waves, the sequences `rows`, for another to join. Not there where users' functions are
        looked at.
        """
        ...

    def join(self, part: Any, rows: slice) -> None:
        """Take over what another saw of later waves, the sequences `rows`, as if they had been seen here."""
        ...


def observe(plan: Plan, toggles: Sequence[Toggle], *, first: bool = True, progress: Callback | None = None) -> Observed:
    """One pass over the weights: both sides and these toggles' trials; in the `first` the sections look on."""
    start = time.perf_counter()
    observation = Observation.of(plan, toggles, first=first)
    counts, memory = observation.run(progress)
    return observation.observed(counts, memory, time.perf_counter() - start)


def bytes_per_token(plan: Plan) -> int:
    """What the sections keep of each token of the first pass, at most."""
    counts = (getattr(module, "bytes_per_token", None) for module in modules("observe").values())
    return sum(count(plan) for count in counts if count is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What walks in a pass over a plan, and what looks at it."""

    plan: Plan
    walkers: Sequence[Walker]
    changes: Changes
    routes: Routes
    logits: Logits
    sections: Mapping[str, SectionObserver]
    first: bool

    @classmethod
    def of(cls, plan: Plan, toggles: Sequence[Toggle], *, first: bool = True) -> Observation:
        """Both sides and the trials of these toggles; of the `first` pass also those of the sections."""
        trials = toggle_trials(plan, toggles)
        for module in modules("trials").values() if first else ():
            trials |= module.trials(plan, trials)
        walkers = _walkers(plan, trials)
        names = [walk.name for walk in walkers if walk.name != REFERENCE]
        pairs = [(key, trial.base) for key, trial in trials.items() if trial.routes is None]
        # Restored trials beside the reference: one that has all its bits is exact, however small a metric is.
        pairs += [(key, REFERENCE) for key, base in pairs if base == CANDIDATE]
        ids, mask, scored = plan.tokens_on_device
        return cls(
            plan=plan,
            walkers=[*walkers, *(_beside(plan) if first else ())],
            changes=Changes(pairs),
            routes=Routes(REFERENCE, names, mask),
            logits=Logits(
                plan.model.graph.scores, REFERENCE, names, ids, scored, plan.recipe.tokens.sampler, plan.gated
            ),
            sections=_sections(plan, trials) if first else {},
            first=first,
        )

    def run(self, progress: Callback | None = None, waves: slice = slice(None)) -> tuple[Counts, Memory]:
        """Walk these waves with everything looking on; what that cost."""
        plan, first = self.plan, self.first
        with Peak(plan.model.device) as peak:
            passes = replace(plan.passes(progress), draws=plan.recipe.envelope if first else 0, waves=waves)
            run = passes.run(self.walkers, self.observers, kept_bytes=bytes_per_token(plan) if first else 0)
        return run.counts, Memory(estimated=run.footprint.total, held_before=peak.before, peak=peak.bytes)

    @property
    def observers(self) -> list[Observer]:
        """All that look at the pass."""
        return [self.changes, self.routes, self.logits, *self.sections.values()]

    def observed(self, counts: Counts, memory: Memory, seconds: float) -> Observed:
        """What was seen, after the pass."""
        sequences, length = self.plan.tokens.input_ids.shape
        batches = sum(len(walk.schedule.on(sequences, length).steps) for walk in self.walkers)
        return Observed(
            changes=self.changes,
            routes=self.routes,
            logits=self.logits,
            cost=Cost(
                counts=counts,
                naive_evaluations=batches * len(self.plan.model.graph.nodes),
                seconds=seconds,
                memory=memory,
            ),
            sections={name: observer.result for name, observer in self.sections.items()},
            answers={},
        )


def _walkers(plan: Plan, trials: Trials) -> list[Walker]:
    """Both sides and the trials; those with forced routes come last."""
    trial_walkers = [walker(plan, key, trial.side, routes=trial.routes) for key, trial in trials.items()]
    return [*sides(plan), *sorted(trial_walkers, key=lambda walk: walk.routes is not None)]


def _beside(plan: Plan) -> list[Walker]:
    """The oracle, and the shadow that shows local errors; the latter only where toggles are tried."""
    oracle = [] if plan.oracle is None else [walker(plan, ORACLE, plan.oracle)]
    shadow_walker = shadow(plan)
    return [*oracle, *([] if shadow_walker is None else [shadow_walker])]


def _sections(plan: Plan, trials: Trials) -> dict[str, SectionObserver]:
    observers = {name: module.observer(plan, trials) for name, module in modules("observe").items()}
    return {name: observer for name, observer in observers.items() if observer is not None}
