"""One pass over a study: both sides, the trials, the shadow and the oracle run; all sections' observers look on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from moeparity.bisection.measures import MEASURES
from moeparity.bisection.observed import Observed, PassCost
from moeparity.bisection.observers import Changes, Logits, Routes
from moeparity.bisection.oracle.side import ORACLE
from moeparity.bisection.study import Study
from moeparity.bisection.trials import (
    Refusals,
    TrialKey,
    Trials,
    impossible,
    of_trial,
    shadow,
    sides,
    toggle_trials,
    walker,
    why,
)
from moeparity.bisection.watch import SectionObserver
from moeparity.engine.lockstep import Counts
from moeparity.engine.memory import Memory, Peak
from moeparity.engine.view import Observer
from moeparity.engine.walker import Walker, WalkersRefusedError
from moeparity.plan.sides import CANDIDATE, REFERENCE
from moeparity.plan.toggles import Toggle
from moeparity.progress import Callback


def observe(
    study: Study,
    toggles: Sequence[Toggle],
    *,
    first: bool = True,
    refused: Refusals | None = None,
    progress: Callback | None = None,
) -> Observed:
    """Run one pass over the weights: both sides and these toggles' trials. In the `first` pass the sections look on
    too.

    refused: trials that are already known not to run.
    """
    start = time.perf_counter()
    observation, counts, memory = ran(Observation.of(study, toggles, first=first, refused=refused), progress)
    return observation.observed(counts, memory, time.perf_counter() - start)


def ran(
    observation: Observation, progress: Callback | None = None, waves: slice = slice(None)
) -> tuple[Observation, Counts, Memory]:
    """The observation after these waves, and what they cost. If a kernel refuses a trial, all starts anew without
    it.
    """
    while True:
        try:
            counts, memory = observation.run(progress, waves)
        except WalkersRefusedError as error:
            observation = observation.without(error)
        else:
            return observation, counts, memory


def bytes_per_token(study: Study) -> int:
    """How many bytes the sections keep for each token of the first pass, at most."""
    return sum(measure.watch.bytes_per_token(study) for measure in MEASURES if measure.watch is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What runs in a pass over a study, and what observes it."""

    study: Study
    walkers: Sequence[Walker]
    changes: Changes
    routes: Routes
    logits: Logits
    sections: Mapping[str, SectionObserver]
    first: bool
    toggles: Sequence[Toggle]
    refused: Refusals

    @classmethod
    def of(
        cls, study: Study, toggles: Sequence[Toggle], *, first: bool = True, refused: Refusals | None = None
    ) -> Observation:
        """The observation of both sides and of these toggles' trials; in the `first` pass also of the sections' trials.

        Leaves out the trials in `refused`, and those that the shapes of their calls make impossible. Raises SpecError
        if a side can't run.
        """
        trials, unbound = toggle_trials(study, toggles)
        for measure in MEASURES if first else ():
            trials |= {} if measure.trials is None else measure.trials(study, trials)
        refused = unbound | (refused or {})
        trials = {key: trial for key, trial in trials.items() if key not in refused}
        walkers, unfit = _that_run(study, [*_walkers(study, trials), *(_beside(study) if first else ())])
        trials = {key: trial for key, trial in trials.items() if key not in unfit}
        names = [walk.name for walk in walkers if walk.name in {CANDIDATE, *trials}]
        pairs = [(key, trial.base) for key, trial in trials.items() if trial.routes is None]
        # Restored trials are also compared with the reference: if all bits are equal the fix is exact, however small a
        # metric.
        pairs += [(key, REFERENCE) for key, base in pairs if base == CANDIDATE]
        _, mask, _ = study.tokens_on_device
        return cls(
            study=study,
            walkers=walkers,
            changes=Changes(pairs),
            routes=Routes(REFERENCE, names, mask),
            logits=Logits.of(study, names),
            sections=_watching(study, trials) if first else {},
            first=first,
            toggles=toggles,
            refused=refused | unfit,
        )

    def without(self, error: WalkersRefusedError) -> Observation:
        """A new observation without the trials that a kernel refused. Raises the error if it refused a side."""
        trials = [name for name in error.walkers if isinstance(name, TrialKey)]
        if len(trials) < len(error.walkers):
            raise error
        refused = self.refused | dict.fromkeys(trials, why(error.refusal))
        return Observation.of(self.study, self.toggles, first=self.first, refused=refused)

    def run(self, progress: Callback | None = None, waves: slice = slice(None)) -> tuple[Counts, Memory]:
        """Run these waves with all observers; gives what that cost."""
        study, first = self.study, self.first
        with Peak(study.model.device) as peak:
            passes = replace(study.passes(progress), draws=study.recipe.envelope if first else 0, waves=waves)
            run = passes.run(self.walkers, self.observers, kept_bytes=bytes_per_token(study) if first else 0)
        return run.counts, Memory(estimated=run.footprint.total, held_before=peak.before, peak=peak.bytes)

    @property
    def observers(self) -> list[Observer]:
        """All observers of the pass."""
        return [self.changes, self.routes, self.logits, *self.sections.values()]

    def observed(self, counts: Counts, memory: Memory, seconds: float) -> Observed:
        """What was seen, once the pass is over."""
        sequences, length = self.study.tokens.input_ids.shape
        batches = sum(len(walk.schedule.on(sequences, length).steps) for walk in self.walkers)
        return Observed(
            changes=self.changes,
            routes=self.routes,
            logits=self.logits,
            cost=PassCost(
                counts=counts,
                naive_evaluations=batches * len(self.study.model.graph.nodes),
                seconds=seconds,
                memory=memory,
            ),
            sections={name: observer.result for name, observer in self.sections.items()},
            answers={},
            refused=self.refused,
        )


def _walkers(study: Study, trials: Trials) -> list[Walker]:
    """Walkers of both sides and of the trials; those with forced routes come last."""
    trial_walkers = [of_trial(study, key, trial) for key, trial in trials.items()]
    return [*sides(study), *sorted(trial_walkers, key=lambda walk: walk.routes is not None)]


def _that_run(study: Study, walkers: Sequence[Walker]) -> tuple[list[Walker], Refusals]:
    """The walkers whose ops can run on the tokens, and why other trials are refused. A shadow skips nodes that can't
    run.

    Raises SpecError if a side or the oracle can't run.
    """
    refusals_of = impossible(study, walkers)
    able: list[Walker] = []
    refused: Refusals = {}
    for walk in walkers:
        refusals = refusals_of.get(walk.name, ())
        if refusals and isinstance(walk.name, TrialKey):
            refused[walk.name] = why(refusals[0])
        elif refusals and walk.inputs_of is None:
            raise refusals[0]
        else:
            able.append(replace(walk, skips=frozenset(refusal.node for refusal in refusals)))
    return able, refused


def _beside(study: Study) -> list[Walker]:
    """The oracle, if there is one, and the shadow that shows local errors, if toggles are tried."""
    oracle = [] if study.oracle is None else [walker(study, ORACLE, study.oracle)]
    shadow_walker = shadow(study)
    return [*oracle, *([] if shadow_walker is None else [shadow_walker])]


def _watching(study: Study, trials: Trials) -> dict[str, SectionObserver]:
    watches = [measure.watch for measure in MEASURES if measure.watch is not None]
    observers = {watch.name: watch.observer(study, trials) for watch in watches}
    return {name: observer for name, observer in observers.items() if observer is not None}
