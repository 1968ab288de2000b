"""Passes over some tokens: as many walkers at once as memory allows, split if a kernel refuses one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from moeparity.engine.duration import FASTEST, require_time
from moeparity.engine.footprint import Footprint, estimate, greatest, require
from moeparity.engine.lockstep import Counts, run
from moeparity.engine.refusals import refusals
from moeparity.engine.view import Observer
from moeparity.engine.walker import Walker, WalkerName, WalkersRefusedError
from moeparity.inputs.machine import available_bytes
from moeparity.inputs.tokens.images import Images
from moeparity.inputs.weights.store import WeightStore
from moeparity.numerics.collectives.execute import arch
from moeparity.ops.attribute import RefusedError
from moeparity.progress import Callback

Refused = dict[WalkerName, RefusedError]
"""Walkers that can't run, and why."""

Observing = Callable[[Sequence[Walker]], Sequence[Observer]]
"""Makes the observers of a pass from the walkers that are tried in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One finished pass: the walkers that were tried in it, its observers, what it cost and what it was estimated to
    need.
    """

    trials: tuple[Walker, ...]
    observers: Sequence[Observer]
    counts: Counts
    footprint: Footprint


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRunner:
    """What passes run on: weights, and on their device tokens [B, T] int64, their mask [B, T] bool and the images among
    them.

    memory_limit: bytes a pass may take; None means what is available, infinity any number.
    draws: how often an observer calls each kernel again.
    waves: which waves of sequences are walked.
    """

    weights: WeightStore
    input_ids: torch.Tensor
    attention_mask: torch.Tensor | None
    images: Images | None = None
    memory_limit: float | None = None
    progress: Callback | None = None
    draws: int = 0
    waves: slice = field(default_factory=lambda: slice(None))

    def run(
        self,
        walkers: Sequence[Walker],
        observers: Sequence[Observer],
        *,
        saved: Iterable[str] | None = None,
        kept_bytes: int = 0,
    ) -> Pass:
        """One pass with all of these walkers. `saved` are nodes whose values an observer keeps,
        `kept_bytes` what observers keep per token beside that. Raises MoeparityError if it does not fit into memory,
        SpecError if a kernel refuses a walker.
        """
        sequences, length = self.input_ids.shape
        footprint = require(
            walkers, self.weights, sequences, length, limit=self.memory_limit, saved=saved, kept_bytes=kept_bytes
        )
        return self._ran(walkers, walkers, observers, footprint)

    def try_all(
        self,
        always: Sequence[Walker],
        trials: Sequence[Walker],
        observing: Observing,
        *,
        refused: Refused | None = None,
    ) -> Iterator[Pass]:
        """Passes that together try every walker once, each pass together with the walkers in `always`.

        Each pass tries as many as memory allows, at least one. A walker that an op refuses is in none of the passes and
        is entered into `refused`. Raises MoeparityError if not even one fits, SpecError if `always` cannot run.
        """
        refused = {} if refused is None else refused
        sequences, length = self.input_ids.shape
        impossible = refusals([*always, *trials], self.weights.graph, sequences, length, arch(self.weights.device))
        refused |= {trial.name: impossible[trial.name][0] for trial in trials if trial.name in impossible}
        waiting = [trial for trial in trials if trial.name not in refused]
        while waiting:
            count, footprint = self._most(always, waiting)
            yield from self._without_refused(always, waiting[:count], observing, footprint, refused)
            waiting = waiting[count:]

    def _without_refused(
        self,
        always: Sequence[Walker],
        trials: Sequence[Walker],
        observing: Observing,
        footprint: Footprint | None,
        refused: Refused,
    ) -> Iterator[Pass]:
        """One pass, with its footprint if that was worked out already. If a kernel refuses a walker, the pass is run
        again without it.
        """
        while trials:
            walkers, observers = [*always, *trials], observing(trials)
            if footprint is None:
                footprint = require(walkers, self.weights, *self.input_ids.shape, limit=self.memory_limit)
            try:
                yield self._ran(walkers, trials, observers, footprint)
            except WalkersRefusedError as error:
                remaining = [trial for trial in trials if trial.name not in error.walkers]
                if len(remaining) == len(trials):
                    raise
                refused |= {trial.name: error.refusal for trial in trials if trial.name in error.walkers}
                trials, footprint = remaining, None
            else:
                return

    def _ran(
        self,
        walkers: Sequence[Walker],
        trials: Sequence[Walker],
        observers: Sequence[Observer],
        footprint: Footprint,
    ) -> Pass:
        seconds = FASTEST[self.weights.device.type].seconds_of(footprint.amounts.repeated(self.draws))
        require_time(seconds, "this pass", "Give fewer or shorter sequences, or fewer draws.")
        counts = run(
            walkers,
            self.weights,
            self.input_ids,
            observers,
            attention_mask=self.attention_mask,
            images=self.images,
            waves=self.waves,
            work=footprint.work,
            progress=self.progress,
        )
        return Pass(trials=tuple(trials), observers=observers, counts=counts, footprint=footprint)

    def _most(self, always: Sequence[Walker], trials: Sequence[Walker]) -> tuple[int, Footprint | None]:
        """How many of these walkers, from the first on, fit into one pass, at least one; and their footprint, if it was
        worked out and fits.
        """
        limit = available_bytes(self.weights.device) if self.memory_limit is None else self.memory_limit
        if limit is None:
            return len(trials), None
        fitting: dict[int, Footprint] = {}

        def fits(count: int) -> bool:
            footprint = estimate([*always, *trials[:count]], self.weights, *self.input_ids.shape)
            if footprint.total <= limit:
                fitting[count] = footprint
            return count in fitting

        count = len(trials) if fits(len(trials)) else max(1, greatest(fits, len(trials)))
        return count, fitting.get(count)
