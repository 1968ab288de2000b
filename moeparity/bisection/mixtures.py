"""Mixtures of both sides, evaluated: many at once in one pass over the weights, each one once."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from moeparity.bisection.observed import MixturePass, Observed
from moeparity.bisection.observers import Changes, Logits
from moeparity.bisection.plan import Plan
from moeparity.bisection.resume.pieces import PieceStore
from moeparity.bisection.trials import TrialKey, alone, restored, walker
from moeparity.engine.lockstep import Counts
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
    """What a search asks: a callable from mixtures to their outcomes against the reference.

    A mixture's toggles are at the candidate's value and all others at the reference's. Each call walks those that are
    new in as few passes over the weights as memory allows, together with the reference. k3 and the upper bound of a
    mixture are taken on the recipe's tokens, which the mixture did not sample.

    `routes` says how much of the reference's routes the mixtures' routers are forced to take over.
    walked, passes, counts, seconds: what the calls have cost so far; `walked` are mixtures.
    Each pass is kept in `store` under `name` and its number; those of a run that was killed are taken over.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        routes: Routes = NATURAL,
        progress: Callback | None = None,
        store: PieceStore | None = None,
        name: str = "mixtures",
    ) -> None:
        """Nothing is evaluated yet but what was kept."""
        self._store, self._name = store, name
        self._plan, self._progress = plan, progress
        self._forced = None if routes == NATURAL else Forced(of=REFERENCE, replayed=routes)
        self._toggles = {toggle.name: toggle for toggle in plan.toggles}
        self._outcomes: dict[Mixture, Outcome | None] = {}
        self.walked, self.passes, self.counts, self.seconds = 0, 0, Counts(), 0.0
        while (stored_pass := self._kept_pass()) is not None:
            self._take_over(stored_pass)

    def learn(self, observed: Observed) -> None:
        """Take over what the passes of a bisection saw of this plan: toggles thrown alone, and restored alone.

        Only where routes are not forced, and of toggles that no other contains.
        """
        toggles = [toggle for toggle in self._plan.trial_toggles if toggle.parent is None]
        whole = frozenset(toggle.name for toggle in toggles)
        if self._forced is None:
            for toggle in toggles:
                self._learn(observed, alone(toggle), frozenset({toggle.name}))
            # Of two toggles, one alone is the other one restored, of which more is known.
            for toggle in toggles:
                self._learn(observed, restored(toggle), whole - {toggle.name})

    def __call__(self, mixtures: Sequence[Mixture]) -> Mapping[Mixture, Outcome | None]:
        """The outcome of each; None for a mixture that an op refuses.

        Raises KeyError for a name that is no toggle of the plan, MoeparityError where not even one mixture fits into
        memory.
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
        """The mixture, bound; None where an op refuses it, or its routes cannot be forced."""
        toggles = [self._toggles[name] for name in self._toggles if name in mixture]
        if len(toggles) < len(mixture):
            raise KeyError(f"no toggles of this plan: {sorted(mixture - self._toggles.keys())}")
        with suppress(SpecError):
            side = mixed(self._plan.reference, toggles, self._plan.candidate)
            if self._forced is not None:
                replayed_plan(side.plan, self._plan.reference.plan)
            return side
        return None

    def _evaluate(self, sides: Mapping[Mixture, Side]) -> None:
        """Walk mixtures in as few passes as memory allows; those that a kernel refuses stay without an outcome."""
        plan, begun = self._plan, time.perf_counter()
        walkers = [walker(plan, mixture, side, routes=self._forced) for mixture, side in sides.items()]
        reference = walker(plan, REFERENCE, plan.reference)
        for run in plan.passes(self._progress).try_all([reference], walkers, self._observing):
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

    def _kept_pass(self) -> MixturePass | None:
        """The next pass of these mixtures that a killed run has kept; None where there is none."""
        piece = None if self._store is None else self._store.load(f"{self._name}-{self.passes}")
        return piece if isinstance(piece, MixturePass) else None

    def _take_over(self, mixture_pass: MixturePass) -> None:
        self._outcomes |= mixture_pass.outcomes
        self.passes, self.walked = self.passes + 1, self.walked + len(mixture_pass.outcomes)
        self.counts = self.counts.joined(mixture_pass.counts)
        self.seconds += mixture_pass.seconds

    def _observing(self, mixtures: Sequence[Walker]) -> Sequence[Observer]:
        plan, names = self._plan, [mixture.name for mixture in mixtures]
        ids, _, scored = plan.tokens_on_device
        logits = Logits(plan.model.graph.scores, REFERENCE, names, ids, scored, plan.recipe.tokens.sampler, plan.gated)
        return [Changes([(name, REFERENCE) for name in names]), logits]

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
        """The bound that the gate looks at: as in a verdict, fewer than 25 sequences pass by equal bits only."""
        if not bool(sums.unequal.any()) and not bool(sums.nonfinite.any()):
            return 0.0
        interval = sums.gate_value(self._plan.gate)
        return interval.high if interval.sequences >= MINIMUM_SEQUENCES else math.inf
