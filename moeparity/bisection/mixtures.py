"""Mixtures of both sides, evaluated: many at once in one pass over the weights, each one once."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from moeparity.bisection.observed import Observed
from moeparity.bisection.observers import Changes, Logits
from moeparity.bisection.prepare import Plan
from moeparity.bisection.trials import alone, restored
from moeparity.engine.footprint import estimate, require
from moeparity.engine.lockstep import Counts, Walker, run
from moeparity.engine.routes import NATURAL, Forced, Routes, replayed_plan
from moeparity.errors import SpecError
from moeparity.inputs.machine import available_bytes
from moeparity.metrics.interval import sequence_mean, token_mean
from moeparity.metrics.tokens import SequenceSums
from moeparity.metrics.verdict import MINIMUM_SEQUENCES
from moeparity.plan.sides import REFERENCE, Side
from moeparity.plan.toggles import mixed
from moeparity.progress import Callback
from moeparity.search.memo import Coalition, Outcome


class Mixtures:
    """What a search asks: a callable from coalitions of toggles to their outcomes against the reference.

    A coalition's toggles are at the candidate's value and all others at the reference's. Each call walks those that are
    new in as few passes over the weights as memory allows, together with the reference. k3 and the upper bound of a
    mixture are taken on the recipe's tokens, which the mixture did not sample.

    `routes` says how much of the reference's routes the mixtures' routers are forced to take over.
    walked, passes, counts, seconds: what the calls have cost so far; `walked` are mixtures.
    """

    def __init__(self, plan: Plan, *, routes: Routes = NATURAL, progress: Callback | None = None) -> None:
        """Nothing is evaluated yet."""
        self._plan, self._progress = plan, progress
        self._forced = None if routes == NATURAL else Forced(of=REFERENCE, what=routes)
        self._toggles = {toggle.name: toggle for toggle in plan.toggles}
        self._known: dict[Coalition, Outcome | None] = {}
        self.walked, self.passes, self.counts, self.seconds = 0, 0, Counts(), 0.0

    def learn(self, observed: Observed) -> None:
        """Take over what the passes of a bisection saw of this plan: toggles thrown alone, and restored alone.

        Only where routes are not forced, and of toggles that no other contains.
        """
        whole = [toggle.name for toggle in self._plan.tried if toggle.parent is None]
        for toggle in self._plan.tried if self._forced is None else ():
            if toggle.parent is None:
                self._learn(observed, alone(toggle), frozenset({toggle.name}))
                self._learn(observed, restored(toggle), frozenset(whole) - {toggle.name})

    def __call__(self, coalitions: Sequence[Coalition]) -> Mapping[Coalition, Outcome | None]:
        """The outcome of each; None for a mixture that an op refuses.

        Raises KeyError for a name that is no toggle of the plan, MoeparityError where not even one mixture fits into
        memory.
        """
        sides = {c: self._side(c) for c in dict.fromkeys(coalitions) if c not in self._known}
        self._known |= {coalition: None for coalition, side in sides.items() if side is None}
        left = {coalition: side for coalition, side in sides.items() if side is not None}
        while left:
            batch = dict(list(left.items())[: self._most(list(left.values()))])
            self._known |= self._evaluated(batch)
            left = {coalition: side for coalition, side in left.items() if coalition not in batch}
        return {coalition: self._known[coalition] for coalition in coalitions}

    def _learn(self, observed: Observed, trial: str, coalition: Coalition) -> None:
        changed = observed.changes.nodes.get((trial, REFERENCE))
        if changed is not None:
            self._known[coalition] = self._outcome(observed.logits.sums(trial), exact=not changed)

    def _side(self, coalition: Coalition) -> Side | None:
        """The mixture, bound; None where an op refuses it, or its routes cannot be forced."""
        moved = [self._toggles[name] for name in self._toggles if name in coalition]
        if len(moved) < len(coalition):
            raise KeyError(f"no toggles of this plan: {sorted(coalition - self._toggles.keys())}")
        with suppress(SpecError):
            side = mixed(self._plan.reference, moved, self._plan.candidate)
            if self._forced is not None:
                replayed_plan(side.plan, self._plan.reference.plan)
            return side
        return None

    def _walkers(self, sides: Iterable[Side]) -> list[Walker]:
        """The reference, and the mixtures named by their numbers."""
        plan, reference = self._plan, self._plan.reference
        return [
            Walker(name=REFERENCE, plan=reference.plan, micro_batch=reference.micro_batch, functions=plan.functions),
            *(
                Walker(
                    name=str(i), plan=s.plan, micro_batch=s.micro_batch, routes=self._forced, functions=plan.functions
                )
                for i, s in enumerate(sides)
            ),
        ]

    def _most(self, sides: Sequence[Side]) -> int:
        """How many of these mixtures, from the first on, one pass has the memory for; at least one."""
        plan, weights = self._plan, self._plan.model.weights
        limit = available_bytes(weights.device) if plan.memory_limit is None else plan.memory_limit

        def fits(count: int) -> bool:
            needed = estimate(self._walkers(sides[:count]), weights, *plan.tokens.input_ids.shape)
            return limit is None or needed.total <= limit

        low, high = 1, len(sides) + 1
        middle = len(sides)
        while high - low > 1:
            low, high = (middle, high) if fits(middle) else (low, middle)
            middle = (low + high) // 2
        return low

    def _evaluated(self, batch: Mapping[Coalition, Side]) -> dict[Coalition, Outcome | None]:
        """The outcomes of one pass; of several where a kernel refuses a mixture only when it meets the shapes."""
        try:
            return dict(self._pass(batch))
        except SpecError:
            if len(batch) == 1:
                return dict.fromkeys(batch)
        parts, half = list(batch.items()), len(batch) // 2
        return self._evaluated(dict(parts[:half])) | self._evaluated(dict(parts[half:]))

    def _pass(self, batch: Mapping[Coalition, Side]) -> dict[Coalition, Outcome]:
        plan, started = self._plan, time.perf_counter()
        weights, walkers = plan.model.weights, self._walkers(batch.values())
        names = [walker.name for walker in walkers[1:]]
        ids, mask, scored = (
            x.to(plan.model.device) for x in (plan.tokens.input_ids, plan.tokens.attention_mask, plan.tokens.loss_mask)
        )
        work = require(walkers, weights, *ids.shape, limit=plan.memory_limit).work
        changes = Changes([(name, REFERENCE) for name in names])
        logits = Logits(plan.model.graph.scores, REFERENCE, names, ids, scored, plan.recipe.tokens.sampler)
        counts = run(walkers, weights, ids, [changes, logits], attention_mask=mask, work=work, progress=self._progress)
        self.passes, self.counts = self.passes + 1, self.counts.joined(counts)
        self.walked += len(batch)
        self.seconds += time.perf_counter() - started
        return {
            coalition: self._outcome(logits.sums(name), exact=not changes.nodes[name, REFERENCE])
            for coalition, name in zip(batch, names, strict=True)
        }

    def _outcome(self, sums: SequenceSums, *, exact: bool) -> Outcome:
        tokens = float(sums.tokens.sum())
        return Outcome(
            value=float(sums.kl_candidate_reference.sum()) / tokens,
            k3=float(sums.k3.sum()) / tokens,
            upper=self._upper(sums),
            sums=tuple(sums.kl_candidate_reference.tolist()),
            tokens=tuple(sums.tokens.tolist()),
            exact=exact,
        )

    def _upper(self, sums: SequenceSums) -> float:
        """The bound that the gate looks at: as in a verdict, fewer than 25 sequences pass by equal bits only."""
        if not bool(sums.unequal.any()) and not bool(sums.nonfinite.any()):
            return 0.0
        mean = token_mean if self._plan.recipe.gate.reduce == "token" else sequence_mean
        interval = mean(sums.k3, sums.tokens)
        return interval.high if interval.sequences >= MINIMUM_SEQUENCES else math.inf
