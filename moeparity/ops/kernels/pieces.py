"""Who computes an op's pieces: this process all of them (simulated ranks), or only its own rank's (a live job)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

RANKS = 1
"""The axis of ranks of a value in partial sums; it follows the batch axis."""

Compute = Callable[[], tuple[torch.Tensor, ...]]
Reduce = Callable[[Sequence[torch.Tensor]], torch.Tensor]
"""Computes the reduction of all ranks' partial sums, if ranks are simulated."""


class Ranks:
    """Simulated ranks: every piece is computed in this process, so nothing has to be sent."""

    def holds(self, piece: int, pieces: int) -> bool:  # noqa: ARG002
        """Whether this process computes this one of `pieces` pieces."""
        return True

    def gathered(self, outputs: Sequence[torch.Tensor | None], pieces: int) -> list[torch.Tensor]:  # noqa: ARG002
        """The outputs of all pieces; None in `outputs` stands for a piece that another rank computed."""
        return [output for output in outputs if output is not None]

    def reduced(self, partials: Sequence[torch.Tensor], simulated: Reduce, *, scattered: bool) -> torch.Tensor:  # noqa: ARG002
        """The sum of all ranks' partial sums [B, T, H], as `simulated` forms it. scattered: by a reduce-scatter over
        the tokens that is gathered again.
        """
        return simulated(partials)

    def in_groups(
        self,
        groups: Sequence[tuple[int, int]],  # noqa: ARG002
        compute: Compute,
        *,
        whole: bool,  # noqa: ARG002
    ) -> tuple[torch.Tensor, ...]:
        """The result of `compute` in one group of ranks: a pipeline stage, or a group of it that attends apart.
        groups: the number of each, and how many there are, the widest first. whole: the values are not partial sums,
        and are sent to the other groups.
        """
        return compute()

    def handed_on(self, stage: int, values: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:  # noqa: ARG002
        """The values that the next pipeline stage receives from this one."""
        return list(values)

    def stage(self, node: str) -> tuple[int, int]:  # noqa: ARG002
        """The pipeline stage that computes a node, and how many stages with ranks of their own there are."""
        return 0, 1


_current = Ranks()
"""The ranks of the one thread that computes."""


def current() -> Ranks:
    """The current `Ranks`."""
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
    """The result of `compute` for each piece's operands; None if another rank computes the piece."""
    return [compute(*piece) if _current.holds(i, pieces) else None for i, piece in enumerate(operands)]


def gathered(outputs: Sequence[torch.Tensor | None], pieces: int) -> torch.Tensor:
    """The ranks' outputs side by side along the last axis; with one rank, that output itself."""
    every = _current.gathered(outputs, pieces)
    return every[0] if len(every) == 1 else torch.cat(tuple(every), dim=-1)


def parts(x: torch.Tensor, pieces: int, axis: int) -> list[torch.Tensor]:
    """The ranks' parts of x, cut along an axis as by torch.chunk; freshly allocated, with axes in memory order as in
    x.
    """
    if pieces == 1:
        return [x]
    strides = x.stride()
    order = sorted(range(x.dim()), key=lambda a: -strides[a])
    back = [order.index(a) for a in range(x.dim())]
    shares = (part.permute(order).clone(memory_format=torch.contiguous_format) for part in x.chunk(pieces, dim=axis))
    return [part.permute(back) for part in shares]


def stacked(outputs: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Partial sums stacked along the axis of ranks. Those of other ranks are NaN, and nothing here may read them."""
    first_output = next(output for output in outputs if output is not None)
    every = [torch.full_like(first_output, torch.nan) if output is None else output for output in outputs]
    return torch.stack(every, dim=RANKS)
