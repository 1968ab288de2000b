"""How a side may have misread the tokens: which it read, in which steps, and which values it recorded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from moeparity.errors import Where
from moeparity.metrics.replay import Replay
from moeparity.plan.schedule.make import schedule
from moeparity.plan.schedule.settings import ScheduleSettings
from moeparity.plan.schedule.steps import MicroBatches, Phase, Schedule, Span, Step
from moeparity.plan.schedule.token_grid import TokenGrid, fillers

_HERE = Where(Path("doctor"))
_BATCH = 8


@dataclass(frozen=True, slots=True)
class Prompts:
    """Where the sequences of a grid begin and end, and how many of their tokens are prompt."""

    grid: TokenGrid

    @property
    def length(self) -> int:
        """Of the longest sequence."""
        return max(map(self.grid.tokens, range(self.grid.sequences)))

    @property
    def shortest(self) -> int:
        """Tokens of the shortest prompt."""
        return min(self.grid.prompts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Sequences with tokens left off or given twice. dropped: how many of the first tokens, or `prompt` for the whole
    prompt. repeated: which token comes twice, the first or the last of the prompt.
    """

    dropped: int | Literal["prompt"] = 0
    repeated: Literal["first", "prompt", ""] = ""

    def sources(self, length: int, prompt: int) -> list[int]:
        """Which token of a sequence stands at each place of what the side read."""
        first = prompt if self.dropped == "prompt" else self.dropped
        places = list(range(min(first, length - 1), length))
        if self.repeated:
            place = 0 if self.repeated == "first" else prompt - 1
            places.insert(place, place)
        return places


@dataclass(frozen=True, slots=True, kw_only=True)
class Packs:
    """Packs of this many sequences, each of which sees those before it. running: positions count on from one sequence
    to the next.
    """

    sequences: int
    running: bool

    def schedule(self, prompts: Prompts) -> Schedule:
        """The steps."""
        settings = ScheduleSettings(
            pack=self.sequences * prompts.length, mask="none", positions="running" if self.running else "reset"
        )
        return schedule(settings, prompts.grid, _HERE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """Each sequence in a micro-batch of its own."""

    def schedule(self, prompts: Prompts) -> MicroBatches:  # noqa: ARG002
        """The micro-batches."""
        return MicroBatches(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The first tokens of each sequence in one step, all others in a second one, so that something may be wrong in one
    of the steps alone. tokens: how many come first; None for the prompt.
    """

    tokens: int | None = None

    def schedule(self, prompts: Prompts) -> Schedule:
        """The steps."""
        grid = prompts.grid
        steps: list[Step] = []
        for start in range(0, grid.sequences, _BATCH):
            rows = range(start, min(start + _BATCH, grid.sequences))
            steps += [self._step(grid, rows, phase) for phase in ("prefill", "chunk")]
        steps = [step for step in steps if step.spans]
        return Schedule(steps=(*steps, *fillers(steps, grid)), positions="tokens")

    def _step(self, grid: TokenGrid, rows: range, phase: Phase) -> Step:
        spans = []
        for row in rows:
            first, last = grid.spans[row]
            end = grid.prompt_end(row, "prompt") if self.tokens is None else min(first + self.tokens, last)
            spans.append(Span(row, first, end) if phase == "prefill" else Span(row, end, last))
        return Step(spans=tuple(span for span in spans if span.tokens), shape="flat", phase=phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """Values recorded beside the token that stands `by` places before their own."""

    by: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Log-probabilities of a distribution cut to its likeliest tokens and renormalised."""

    by: str
    value: float


Reading = Rows | Packs | Alone | Replay | Split | Shift | Cut
