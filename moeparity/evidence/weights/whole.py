"""The parts of all ranks put together: whole tensors by their rows, and parts that can't be right."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from moeparity.evidence.trace.element_sums import rows_sum
from moeparity.evidence.weights.fingerprint_files import Weights
from moeparity.evidence.weights.part import Part, PartKind, Shape, matrix, numbers


@dataclass(slots=True, kw_only=True, eq=False)
class Whole:
    """One tensor, put together from the parts that ranks hold; some of it may be held by none.

    rows: a checksum of each row, int64, over the columns that some rank holds. held_columns: how many these are.
    replicas: sentences on parts that should be equal and are not. doubled: on parts with the same bits that belong in
    different places. overlap: on parts that do not fit together.
    """

    name: str
    kind: PartKind
    dtype: str
    shape: Shape
    constant: bool
    rows: torch.Tensor
    held_columns: torch.Tensor
    replicas: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    overlap: list[str] = field(default_factory=list)

    @property
    def whole_rows(self) -> torch.Tensor:
        """Which rows somebody holds all of, bool."""
        return self.held_columns == matrix(self.shape)[-1]

    @property
    def total(self) -> int:
        """The sum of all rows modulo 2^64."""
        return rows_sum(self.rows, torch.arange(len(self.rows)))


def wholes(weights: Weights, but: Container[str] = ()) -> dict[str, Whole]:
    """Every tensor that some rank holds a part of, by name, but some."""
    parts: dict[str, list[tuple[int, Part]]] = {}
    for ranked in weights.by_rank:
        for part in (part for part in ranked.parts if part.tensor not in but):
            parts.setdefault(part.tensor, []).append((ranked.rank, part))
    return {name: _whole(name, holders) for name, holders in parts.items()}


def _whole(name: str, parts: Sequence[tuple[int, Part]]) -> Whole:
    first = parts[0][1]
    count = numbers(first.shape, (0,) * len(matrix(first.shape)), matrix(first.shape)).numel()
    whole = Whole(
        name=name, kind=first.kind, dtype=first.dtype, shape=first.shape,
        constant=all(part.constant for _, part in parts),
        rows=torch.zeros(count, dtype=torch.int64), held_columns=torch.zeros(count, dtype=torch.int64),
    )  # fmt: skip
    places: dict[tuple[Shape, Shape], list[tuple[int, Part]]] = {}
    for rank, part in parts:
        if (part.shape, part.dtype) != (first.shape, first.dtype):
            words = f"rank {parts[0][0]} {first.dtype} {list(first.shape)}, rank {rank} {part.dtype} {list(part.shape)}"
            whole.replicas.append(f"of another shape or dtype: {words}")
        else:
            places.setdefault((part.start, part.size), []).append((rank, part))
    whole.replicas += _unequal(places)
    whole.doubled += _doubled(places)
    _lay(whole, places)
    return whole


def _lay(whole: Whole, places: Mapping[tuple[Shape, Shape], Sequence[tuple[int, Part]]]) -> None:
    """One part of each place into the whole, the largest first; what lies over another is left out, and told."""
    laid: list[Part] = []
    for (_, size), holders in sorted(places.items(), key=lambda item: -torch.Size(item[0][1]).numel()):
        rank, part = holders[0]
        if any(_meet(part, laid_part) for laid_part in laid):
            whole.overlap.append(f"rank {rank} holds {_place(part)}, parts of which others hold too")
            continue
        at = numbers(part.shape, part.start, size)
        whole.rows[at] += part.sums
        whole.held_columns[at] += size[-1]
        laid.append(part)


def _unequal(places: Mapping[tuple[Shape, Shape], Sequence[tuple[int, Part]]]) -> Iterator[str]:
    for holders in places.values():
        ranks: dict[int, list[int]] = {}
        for rank, part in holders:
            ranks.setdefault(part.total, []).append(rank)
        if len(ranks) > 1:
            groups = " and ".join(f"rank {', '.join(map(str, holders))}" for holders in ranks.values())
            yield f"{groups} hold {_place(holders[0][1])} with other bits"


def _doubled(places: Mapping[tuple[Shape, Shape], Sequence[tuple[int, Part]]]) -> Iterator[str]:
    alike: dict[tuple[int, Shape], list[tuple[int, Part]]] = {}
    for (_, size), holders in places.items():
        rank, part = holders[0]
        if not part.constant:
            alike.setdefault((part.alike, size), []).append((rank, part))
    for holders in alike.values():
        if len(holders) > 1:
            (rank, part_a), (rank_b, two) = holders[:2]
            yield f"{_place(part_a)} of rank {rank} and {_place(two)} of rank {rank_b} have the same bits"


def _meet(part_a: Part, part_b: Part) -> bool:
    axes = zip(part_a.start, part_a.size, part_b.start, part_b.size, strict=True)
    return all(a < c + d and c < a + b for a, b, c, d in axes)


def _place(part: Part) -> str:
    """`all of it`, `rows 0:8`, `[0:2, 4:8, 0:16]`."""
    axes = matrix(part.shape)
    cut = [(low, low + width) for low, width in zip(part.start, part.size, strict=True)]
    if all((low, high) == (0, most) for (low, high), most in zip(cut, axes, strict=True)):
        return "all of it"
    spans = [f"{low}:{high}" for low, high in cut]
    if len(axes) == 2 and cut[1] == (0, axes[1]):
        return f"rows {spans[0]}"
    if len(axes) == 2 and cut[0] == (0, axes[0]):
        return f"columns {spans[1]}"
    return f"[{', '.join(spans)}]"
