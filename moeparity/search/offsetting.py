"""Finds pairs that offset each other: each costs much alone, and both together next to nothing."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from moeparity.search.contrast import Bounds, Contrast, Interval
from moeparity.search.memo import Memo, Mixture
from moeparity.search.tree import Cell, leaves, name

OFFSET = 4
"""Two cells offset each other if this many times their cost together is surely less than the cost of either alone."""

MOST = 8
"""At most this many cells are paired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsettingPair:
    """Two cells: what each costs alone in the reference, and both together there; KL in nats per token."""

    first: str
    second: str
    first_alone: float
    second_alone: float
    together: float


def offsetting(memo: Memo, changes: Mapping[Cell, Interval], bounds: Bounds) -> tuple[OffsettingPair, ...]:
    """The pairs among disjoint cells that offset each other; asks for one batch, with a mixture for each pair and each
    cell.

    changes: the interval of the whole's change when each cell is restored. Only cells whose restoring surely raises the
    divergence are paired, since then another cell takes their cost back; of these the `MOST` that raise it most.
    """
    raising = sorted((cell for cell in changes if changes[cell][0] > 0), key=lambda cell: -changes[cell][0])[:MOST]
    pairs = list(itertools.combinations([cell for cell in changes if cell in raising], 2))
    memo.ask(mixture for a, b in pairs for mixture in _mixtures(a, b))
    return tuple(_pair(memo, a, b) for a, b in pairs if _offset_each_other(memo, a, b, bounds))


def _mixtures(a: Cell, b: Cell) -> tuple[Mixture, Mixture, Mixture]:
    """The mixtures of the first alone, the second alone, and both."""
    first, second = frozenset(leaves(a)), frozenset(leaves(b))
    return first, second, first | second


def _offset_each_other(memo: Memo, a: Cell, b: Cell, bounds: Bounds) -> bool:
    first, second, together = _mixtures(a, b)
    return all(Contrast({together: OFFSET, alone: -1}).interval(memo, bounds)[1] < 0 for alone in (first, second))


def _pair(memo: Memo, a: Cell, b: Cell) -> OffsettingPair:
    first, second, together = memo.ask(_mixtures(a, b))
    assert first is not None, "an interval is bounded where all mixtures ran"
    assert second is not None, "an interval is bounded where all mixtures ran"
    assert together is not None, "an interval is bounded where all mixtures ran"
    return OffsettingPair(
        first=name(a), second=name(b), first_alone=first.value, second_alone=second.value, together=together.value
    )
