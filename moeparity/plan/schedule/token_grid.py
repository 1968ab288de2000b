"""What a schedule is made for: the tokens there are, which of them are prompts, and what no step has yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from moeparity.errors import SpecError, Where
from moeparity.paths import LIMIT_FACTOR, limit
from moeparity.plan.schedule.steps import Span, Step

MOST_STEPS: Final = 100_000
"""Steps of one schedule. Each costs at least one call of every op of every layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGrid:
    """The tokens [B, T] that all variants look at.

    spans: the columns first to last - 1 of each sequence that hold its tokens, at least one; the others are padding.
    prompts: how many of these tokens are prompt. ids: all of them by column, needed for a prefix cache only.
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
        """The column behind what is prefilled: behind the prompt, behind the first `start` tokens, or (None) behind
        everything. A first token is prefilled whatever the prompt is.
        """
        first, last = self.spans[sequence]
        if start is None:
            return last
        return min(first + max(self.prompts[sequence] if start == "prompt" else int(start), 1), last)


class StepList:
    """Steps as they are made, no more than the limit. Raises SpecError, with its cost so far, where there are more."""

    def __init__(self, where: Where) -> None:
        self.where, self.most = where, limit(MOST_STEPS)
        self.steps: list[Step] = []

    def add(self, step: Step) -> None:
        """One more, unless it holds nothing."""
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
    """Steps for every token of the grid that is in none of these, as span or copy; a sequence is in each only once."""
    missing = missing_tokens(steps, grid)
    most = max((len(spans) for spans in missing), default=0)
    by_turn = [tuple(spans[turn] for spans in missing if len(spans) > turn) for turn in range(most)]
    return [Step(spans=spans, shape="flat", filler=True) for spans in by_turn]


def missing_tokens(steps: Iterable[Step], grid: TokenGrid) -> list[list[Span]]:
    """What of each sequence is in no step, as spans."""
    computed = [bytearray(grid.length) for _ in grid.spans]
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
