"""Passes over some tokens: these walkers, as many at once as memory allows, split where a kernel refuses one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from moeparity.engine.duration import FASTEST, require_time
from moeparity.engine.footprint import Footprint, estimate, greatest, require
from moeparity.engine.lockstep import Counts, run
from moeparity.engine.view import Observer
from moeparity.engine.walker import Walker
from moeparity.errors import SpecError
from moeparity.inputs.machine import available_bytes
from moeparity.inputs.weights.store import WeightStore
from moeparity.progress import Callback

Observing = Callable[[Sequence[Walker]], Sequence[Observer]]
"""From the walkers that are tried in a pass to the observers that look at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One finished pass: the walkers that were tried in it, what looked at them, what it cost and was to need."""

    trials: tuple[Walker, ...]
    observers: Sequence[Observer]
    counts: Counts
    footprint: Footprint


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRunner:
    """What passes run on: weights, tokens [B, T] int64 and their mask [B, T] bool, on the weights' device.

    memory_limit: bytes a pass may take; None stands for what is available, infinity for any number.
    draws: how often an observer calls each kernel again.
    waves: which waves of sequences are walked.
    """

    weights: WeightStore
    input_ids: torch.Tensor
    attention_mask: torch.Tensor | None
    memory_limit: float | None = None
    progress: Callback | None = None
    draws: int = 0
    waves: slice = field(default_factory=lambda: slice(None))

    def run(
        self,
        walkers: Sequence[Walker],
        observers: Sequence[Observer],
        *,
        until: str | None = None,
        saved: Iterable[str] | None = None,
        kept_bytes: int = 0,
    ) -> Pass:
        """One pass with all of these walkers, up to the node `until`; `saved` are nodes whose values an observer keeps,
        `kept_bytes` that observers keep of each token beside.

        Raises MoeparityError where it does not fit into memory, SpecError where a kernel refuses a walker.
        """
        sequences, length = self.input_ids.shape
        footprint = require(
            walkers, self.weights, sequences, length, limit=self.memory_limit, saved=saved, kept_bytes=kept_bytes
        )
        return self._ran(walkers, walkers, observers, footprint, until)

    def try_all(
        self,
        always: Sequence[Walker],
        trials: Sequence[Walker],
        observing: Observing,
        *,
        until: str | None = None,
    ) -> Iterator[Pass]:
        """Passes that together try every walker once, each beside those that walk `always`.

        As many as memory allows are tried at once, at least one. A walker that a kernel refuses when it meets the
        shapes is in none of the passes. Raises MoeparityError where not even one fits.
        """
        waiting = list(trials)
        while waiting:
            count, footprint = self._most(always, waiting)
            yield from self._split(always, waiting[:count], observing, until, footprint)
            waiting = waiting[count:]

    def _split(
        self,
        always: Sequence[Walker],
        trials: Sequence[Walker],
        observing: Observing,
        until: str | None,
        footprint: Footprint | None = None,
    ) -> Iterator[Pass]:
        """One pass, whose footprint is known where it was seen to fit; several where a kernel refuses a walker."""
        walkers, observers = [*always, *trials], observing(trials)
        if footprint is None:
            sequences, length = self.input_ids.shape
            footprint = require(walkers, self.weights, sequences, length, limit=self.memory_limit)
        try:
            finished = self._ran(walkers, trials, observers, footprint, until)
        except SpecError:
            half = len(trials) // 2
            if half:
                yield from self._split(always, trials[:half], observing, until)
                yield from self._split(always, trials[half:], observing, until)
            return
        yield finished

    def _ran(
        self,
        walkers: Sequence[Walker],
        trials: Sequence[Walker],
        observers: Sequence[Observer],
        footprint: Footprint,
        until: str | None,
    ) -> Pass:
        seconds = FASTEST[self.weights.device.type].seconds_of(footprint.amounts.repeated(self.draws))
        require_time(seconds, "this pass", "Give fewer or shorter sequences, or fewer draws.")
        counts = run(
            walkers,
            self.weights,
            self.input_ids,
            observers,
            attention_mask=self.attention_mask,
            waves=self.waves,
            until=until,
            work=footprint.work,
            progress=self.progress,
        )
        return Pass(trials=tuple(trials), observers=observers, counts=counts, footprint=footprint)

    def _most(self, always: Sequence[Walker], trials: Sequence[Walker]) -> tuple[int, Footprint | None]:
        """How many of these, from the first on, one pass has the memory for, at least one; and what they take, where
        that was worked out and fits.
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
