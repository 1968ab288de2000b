"""Who computes an op's pieces: this process all of them (simulated ranks), or its own rank's only (a live job)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

RANKS = 1
"""The axis of ranks of a value in partial sums, behind that of the batch."""

Compute = Callable[[], tuple[torch.Tensor, ...]]
Reduce = Callable[[Sequence[torch.Tensor]], torch.Tensor]
"""What a reduction makes of all ranks' partial sums, where they are simulated."""


class Ranks:
    """Simulated ranks: every piece is computed here, and what ranks send each other is there."""

    def holds(self, piece: int, pieces: int) -> bool:  # noqa: ARG002
        """Whether this process computes one of so many pieces."""
        return True

    def gathered(self, outputs: Sequence[torch.Tensor | None], pieces: int) -> list[torch.Tensor]:  # noqa: ARG002
        """The outputs of all pieces; None are those that others computed."""
        return [output for output in outputs if output is not None]

    def reduced(self, partials: Sequence[torch.Tensor], simulated: Reduce, *, scattered: bool) -> torch.Tensor:  # noqa: ARG002
        """The sum of all ranks' partial sums [B, T, H], as `simulated` forms it; `scattered`: by a reduce-scatter over
        the tokens, gathered again.
        """
        return simulated(partials)

    def in_group(self, group: tuple[int, int], compute: Compute, *, whole: bool) -> tuple[torch.Tensor, ...]:  # noqa: ARG002
        """What `compute` gives in one of so many groups of ranks: of the rows of a group that attends apart, or of a
        stage of a pipeline; `whole`: values that are not in partial sums, which other groups are sent.
        """
        return compute()

    def handed_on(self, stage: int, values: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:  # noqa: ARG002
        """Values as the stage of a pipeline behind this one has them, which it is sent."""
        return list(values)

    def stage(self, node: str) -> tuple[int, int]:  # noqa: ARG002
        """Which of how many stages of a pipeline computes a node, where each has ranks of its own."""
        return 0, 1


_current = Ranks()
"""Of the one thread that computes."""


def current() -> Ranks:
    """Who computes now."""
    return _current


@contextmanager
def computing(ranks: Ranks) -> Iterator[None]:
    """While the context lasts, pieces are computed, gathered and reduced by `ranks`."""
    global _current  # noqa: PLW0603
    before, _current = _current, ranks
    try:
        yield
    finally:
        _current = before


def each(
    compute: Callable[..., torch.Tensor], operands: Iterable[tuple[Any, ...]], pieces: int
) -> list[torch.Tensor | None]:
    """What `compute` gives of the operands of each of so many pieces; None where another rank computes it."""
    return [compute(*piece) if _current.holds(i, pieces) else None for i, piece in enumerate(operands)]


def gathered(outputs: Sequence[torch.Tensor | None], pieces: int) -> torch.Tensor:
    """What the ranks computed, side by side along the last axis: the value itself of one rank."""
    every = _current.gathered(outputs, pieces)
    return every[0] if len(every) == 1 else torch.cat(tuple(every), dim=-1)


def stacked(outputs: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Partial sums along the axis of ranks. NaN stands for those of other ranks, which nothing here may read."""
    first_output = next(output for output in outputs if output is not None)
    every = [torch.full_like(first_output, torch.nan) if output is None else output for output in outputs]
    return torch.stack(every, dim=RANKS)
