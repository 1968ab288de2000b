"""Evaluates mixtures of both sides: many in one pass over the weights, each mixture once."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from moeparity.bisection.observed import MixturePass, Observed
from moeparity.bisection.observers import Changes, Logits
from moeparity.bisection.resume.pieces import PieceStore
from moeparity.bisection.study import Study
from moeparity.bisection.trials import TrialKey, alone, restored, walker, why
from moeparity.engine.lockstep import Counts
from moeparity.engine.passes import Refused
from moeparity.engine.routes import NATURAL, Forced, Routes, replayed_plan
from moeparity.engine.view import Observer
from moeparity.engine.walker import Walker
from moeparity.errors import SpecError
from moeparity.metrics.tokens import SequenceSums
from moeparity.metrics.verdict import MINIMUM_SEQUENCES
from moeparity.plan.sides import CANDIDATE, REFERENCE, Side
from moeparity.plan.toggles import mixed
from moeparity.progress import Callback
from moeparity.search.memo import Mixture, Outcome


class Mixtures:
    """A callable that gives searches the outcomes of mixtures, each compared with the reference.

    A mixture has some toggles at the candidate's value and all others at the reference's. A call runs the mixtures that
    are new, together with the reference, in as few passes over the weights as memory allows. k3 and the upper bound of
    a mixture are taken on the recipe's tokens, which the mixture did not sample.

    routes: how much of the reference's routes is forced on the mixtures' routers. walked, passes, counts, seconds: what
    all calls have cost so far; `walked` is a number of mixtures. refused: mixtures that can't run, with the node, the
    choice that an op refuses there, and why. Each pass is kept in `store` under `name` and its number; passes kept by a
    killed run are taken from there.
    """

    def __init__(
        self,
        study: Study,
        *,
        routes: Routes = NATURAL,
        progress: Callback | None = None,
        store: PieceStore | None = None,
        name: str = "mixtures",
    ) -> None:
        """Start with the passes that are kept in `store`."""
        self._store, self._name = store, name
        self._study, self._progress = study, progress
        self._forced = None if routes == NATURAL else Forced(of=REFERENCE, replayed=routes)
        self._toggles = {toggle.name: toggle for toggle in study.toggles}
        self._outcomes: dict[Mixture, Outcome | None] = {}
        self.walked, self.passes, self.counts, self.seconds = 0, 0, Counts(), 0.0
        self.refused: dict[Mixture, str] = {}
        while (stored_pass := self._kept_pass()) is not None:
            self._take_over(stored_pass)

    def learn(self, observed: Observed) -> None:
        """Take over the outcomes of each toggle's two trials from passes that a bisection has already made of this
        plan.

        Does so only if no routes are forced, and only for toggles that are not part of another.
        """
        toggles = self._study.whole_toggles
        whole = frozenset(toggle.name for toggle in toggles)
        if self._forced is None:
            for toggle in toggles:
                self._learn(observed, alone(toggle), frozenset({toggle.name}))
            # With two toggles, restoring one is the same mixture as the other alone; the restored trial, which also
            # says whether the candidate's bits changed, overwrites it.
            for toggle in toggles:
                self._learn(observed, restored(toggle), whole - {toggle.name})

    def __call__(self, mixtures: Sequence[Mixture]) -> Mapping[Mixture, Outcome | None]:
        """The outcome of each mixture; None for one that an op refuses.

        Raises KeyError for a name that is not a toggle of the study, and MoeparityError if not even one mixture fits
        into memory.
        """
        new = [mixture for mixture in dict.fromkeys(mixtures) if mixture not in self._outcomes]
        sides = {mixture: side for mixture in new if (side := self._side(mixture)) is not None}
        self._outcomes |= dict.fromkeys(new)
        self._evaluate(sides)
        return {mixture: self._outcomes[mixture] for mixture in mixtures}

    def _learn(self, observed: Observed, trial: TrialKey, mixture: Mixture) -> None:
        nodes = observed.changes.nodes
        if (trial, REFERENCE) in nodes:
            unchanged = not nodes[trial, CANDIDATE] if (trial, CANDIDATE) in nodes else None
            outcome = self._outcome(observed.logits.sums(trial), exact=not nodes[trial, REFERENCE])
            self._outcomes[mixture] = replace(outcome, unchanged=unchanged)

    def _side(self, mixture: Mixture) -> Side | None:
        """The mixture as a bound side; None if an op refuses it, or if its routes cannot be forced."""
        toggles = [self._toggles[name] for name in self._toggles if name in mixture]
        if len(toggles) < len(mixture):
            raise KeyError(f"no toggles of this study: {sorted(mixture - self._toggles.keys())}")
        try:
            side = mixed(self._study.reference, toggles, self._study.candidate)
            if self._forced is not None:
                replayed_plan(side.plan, self._study.reference.plan)
        except SpecError as error:
            self.refused[mixture] = why(error)
            return None
        return side

    def _evaluate(self, sides: Mapping[Mixture, Side]) -> None:
        """Run mixtures in as few passes as memory allows; those that a kernel refuses get no outcome."""
        study, begun = self._study, time.perf_counter()
        walkers = [walker(study, mixture, side, routes=self._forced) for mixture, side in sides.items()]
        reference = walker(study, REFERENCE, study.reference)
        refused: Refused = {}
        for run in study.passes(self._progress).try_all([reference], walkers, self._observing, refused=refused):
            changes, logits = run.observers
            assert isinstance(changes, Changes)
            assert isinstance(logits, Logits)
            outcomes = {}
            for mixture in (trial.name for trial in run.trials):
                assert isinstance(mixture, frozenset)
                exact = not changes.nodes[mixture, REFERENCE]
                outcomes[mixture] = self._outcome(logits.sums(mixture), exact=exact)
            ended = time.perf_counter()
            mixture_pass = MixturePass(outcomes=outcomes, counts=run.counts, seconds=ended - begun)
            begun = ended
            if self._store is not None:
                self._store.save(f"{self._name}-{self.passes}", mixture_pass)
            self._take_over(mixture_pass)
        self.refused |= {mixture: why(refusal) for mixture, refusal in refused.items()}

    def _kept_pass(self) -> MixturePass | None:
        """The next pass of these mixtures, if a killed run has kept it, else None."""
        piece = None if self._store is None else self._store.load(f"{self._name}-{self.passes}")
        return piece if isinstance(piece, MixturePass) else None

    def _take_over(self, mixture_pass: MixturePass) -> None:
        self._outcomes |= mixture_pass.outcomes
        self.passes, self.walked = self.passes + 1, self.walked + len(mixture_pass.outcomes)
        self.counts = self.counts.joined(mixture_pass.counts)
        self.seconds += mixture_pass.seconds

    def _observing(self, mixtures: Sequence[Walker]) -> Sequence[Observer]:
        names = [mixture.name for mixture in mixtures]
        return [Changes([(name, REFERENCE) for name in names]), Logits.of(self._study, names)]

    def _outcome(self, sums: SequenceSums, *, exact: bool) -> Outcome:
        return Outcome(
            value=sums.mean("kl_candidate_reference"),
            k3=sums.mean("k3"),
            upper=self._upper(sums),
            sums=tuple(sums.kl_candidate_reference.tolist()),
            tokens=tuple(sums.tokens.tolist()),
            exact=exact,
        )

    def _upper(self, sums: SequenceSums) -> float:
        """The upper bound that is compared with the gate. As in a verdict, fewer than 25 sequences pass by equal
        bits only.
        """
        if bool(sums.outside.any()):
            return math.inf
        if not bool(sums.unequal.any()) and not bool(sums.nonfinite.any()):
            return 0.0
        interval = sums.gate_value(self._study.gate)
        return interval.high if interval.sequences >= MINIMUM_SEQUENCES else math.inf
