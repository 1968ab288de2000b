"""Which tokens two sides share."""

from __future__ import annotations

from collections.abc import Sequence as Listed
from dataclasses import dataclass

import torch
from torch import Tensor

from moeparity.evidence.alignment.streams import Stream, streams
from moeparity.evidence.alignment.tokens import Tokens
from moeparity.evidence.diff.key_columns import equal_keys


@dataclass(frozen=True, slots=True)
class Shared:
    """The tokens that two forward passes share: their flat places in either grid, int64 [shared].

    `alike`: whether both have one grid, with equal sequences at equal places and keys in equal columns, so that rows
    are compared as they lie.
    """

    a: Tensor
    b: Tensor
    alike: bool


def matched(ours: Listed[Tokens], theirs: Listed[Tokens]) -> dict[tuple[int, int], Shared]:
    """The tokens that passes of two sides share, by the places of the passes. Each sequence has one partner.

    Partners are first sequences with equal ids at the same place, then with equal ids anywhere, then sequences of which
    one begins as the other; of servers also requests that are equal in half of their tokens or more, from the first on,
    since other numbers may draw other tokens behind one prompt.
    """
    left, right = streams(ours), streams(theirs)
    order = {id(stream): place for side in (left, right) for place, stream in enumerate(side)}
    shared: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for fits in (_same_place, _same_ids, _same_beginning, _same_prompt):
        for stream_a in list(left):
            stream_b = next((stream for stream in right if fits(stream_a, stream, order)), None)
            if stream_b is not None:
                left.remove(stream_a)
                right.remove(stream_b)
                cells = zip(stream_a.cells[: _common(stream_a, stream_b)], stream_b.cells, strict=False)
                for (i, p), (j, q) in cells:
                    shared.setdefault((i, j), []).append((p, q))
    return {(i, j): _shared(ours[i], theirs[j], places) for (i, j), places in sorted(shared.items())}


def _shared(a: Tokens, b: Tokens, places: Listed[tuple[int, int]]) -> Shared:
    left, right = (torch.tensor([pair[side] for pair in sorted(places)], dtype=torch.long) for side in (0, 1))
    same_places = len(places) == int(a.real().sum()) == int(b.real().sum()) and torch.equal(left, right)
    alike = a.grid == b.grid and same_places and equal_keys(a, b)
    return Shared(left, right, alike)


def _same_place(stream_a: Stream, stream_b: Stream, order: dict[int, int]) -> bool:
    return stream_a.at == stream_b.at and _same_ids(stream_a, stream_b, order)


def _same_ids(stream_a: Stream, stream_b: Stream, order: dict[int, int]) -> bool:
    """Of sequences without ids those of one number among all."""
    if stream_a.start != stream_b.start:
        return False
    if stream_a.ids is None or stream_b.ids is None:
        return order[id(stream_a)] == order[id(stream_b)]
    return stream_a.ids == stream_b.ids


def _same_beginning(stream_a: Stream, stream_b: Stream, order: dict[int, int]) -> bool:
    if stream_a.ids is None or stream_b.ids is None or stream_a.start != stream_b.start:
        return False
    short = min(len(stream_a.ids), len(stream_b.ids))
    return short > 0 and stream_a.ids[:short] == stream_b.ids[:short]


def _same_prompt(stream_a: Stream, stream_b: Stream, order: dict[int, int]) -> bool:
    if not (stream_a.request and stream_b.request) or stream_a.start != stream_b.start:
        return False
    common = _common(stream_a, stream_b)
    return common is not None and 2 * common >= min(len(stream_a.cells), len(stream_b.cells))


def _common(stream_a: Stream, stream_b: Stream) -> int | None:
    """How many tokens two sequences have in common from the first on; None if their ids are not known."""
    if stream_a.ids is None or stream_b.ids is None:
        return None
    pairs = zip(stream_a.ids, stream_b.ids, strict=False)
    same = next((place for place, (a, b) in enumerate(pairs) if a != b), None)
    return min(len(stream_a.ids), len(stream_b.ids)) if same is None else same
