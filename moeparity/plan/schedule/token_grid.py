"""The tokens that a schedule is made for, which of them are prompts, and which are in no step yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from moeparity.errors import SpecError, Where
from moeparity.paths import LIMIT_FACTOR, limit
from moeparity.plan.schedule.steps import Span, Step

MOST_STEPS: Final = 100_000
"""The most steps a schedule may have. Each costs at least one call of every op of every layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGrid:
    """The tokens [B, T] that all variants look at.

    spans: for each sequence, (first, last + 1) of the columns that hold its tokens, at least one; other columns are
    padding. prompts: for each sequence, how many of its tokens are prompt. ids: token ids of all columns; only needed
    for a prefix cache.
    """

    spans: tuple[tuple[int, int], ...]
    prompts: tuple[int, ...]
    length: int
    ids: tuple[tuple[int, ...], ...] | None = None

    @property
    def sequences(self) -> int:
        """How many there are."""
        return len(self.spans)

    def tokens(self, sequence: int) -> int:
        """How many tokens a sequence has."""
        first, last = self.spans[sequence]
        return last - first

    def prompt_end(self, sequence: int, start: str | int | None) -> int:
        """The column after the last prefilled one: after the prompt (`start` is `prompt`), after the first `start`
        tokens, or after all tokens (None). At least one token is prefilled.
        """
        first, last = self.spans[sequence]
        if start is None:
            return last
        return min(first + max(self.prompts[sequence] if start == "prompt" else int(start), 1), last)


class StepList:
    """A list of steps with a limit on its length. Raises SpecError where it would become longer."""

    def __init__(self, where: Where) -> None:
        self.where, self.most = where, limit(MOST_STEPS)
        self.steps: list[Step] = []

    def add(self, step: Step) -> None:
        """Append a step, unless it is empty."""
        if not step.spans:
            return
        refuse_more(len(self.steps) + 1, self.most, self.where)
        self.steps.append(step)


def refuse_more(steps: int, most: int, where: Where) -> None:
    """Raises SpecError for a schedule of too many steps."""
    if steps > most:
        raise SpecError(
            f"{where}: the schedule has more than {most:,} steps; expected at most as many. Take fewer tokens or "
            f"larger batches, or raise the limit with {LIMIT_FACTOR}."
        )


def fillers(steps: Iterable[Step], grid: TokenGrid) -> list[Step]:
    """Steps for all tokens of the grid that are in none of `steps` (as span or copy); each has at most one span of a
    sequence.
    """
    missing = missing_tokens(steps, grid.sequences, grid.length)
    most = max((len(spans) for spans in missing), default=0)
    by_turn = [tuple(spans[turn] for spans in missing if len(spans) > turn) for turn in range(most)]
    return [Step(spans=spans, shape="flat", filler=True) for spans in by_turn]


def missing_tokens(steps: Iterable[Step], sequences: int, length: int) -> list[list[Span]]:
    """For each sequence of a grid [sequences, length], the spans of its columns that are in no step."""
    computed = [bytearray(length) for _ in range(sequences)]
    for step in steps:
        for part in step.parts:
            computed[part.sequence][part.first : part.last] = b"\1" * (part.last - part.first)
    return [list(_free(sequence, row)) for sequence, row in enumerate(computed)]


def _free(sequence: int, row: bytearray) -> Iterator[Span]:
    """The runs of zeros in a row."""
    first = row.find(0)
    while first >= 0:
        last = row.find(1, first)
        yield Span(sequence, first, len(row) if last < 0 else last)
        first = -1 if last < 0 else row.find(0, last)
