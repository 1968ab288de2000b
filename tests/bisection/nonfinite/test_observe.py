"""The first occurrence of what is not finite, on hand-made nodes: across waves, in padding, by expert."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from moeparity.bisection.nonfinite.measure import FirstOccurrences
from moeparity.engine.view import NodeView
from moeparity.plan.graph import Node
from tests.bisection.test_observers import node, unasked
from tests.grids import block, grid

SIDE = "candidate"
ORDER = ("first", "second", "third")


def node_called(name: str, op: str = "add") -> Node:
    return replace(node(op), name=name)


def seen_at(where: Node, value: Tensor, *, first: int = 0, partials: int = 1, ids: Tensor | None = None) -> NodeView:
    rows = (first, first + len(value))
    axis = where.op.tokens.axis + (partials > 1)
    cut = grid(value.shape[axis], *dict.fromkeys((0, *rows)))
    read = ([block(value, first, [0], cut)], [] if ids is None else [block(ids, first, [0], cut)], None)
    blocks = ([block(value, first, [0], cut, partials=partials, axis=axis)],)
    return NodeView(where, rows, cut, {SIDE: blocks}, {SIDE: read}, {}, {}, {}, unasked)


def observer(mask: Tensor | None = None) -> FirstOccurrences:
    return FirstOccurrences([SIDE], ORDER, torch.ones(4, 3, dtype=torch.bool) if mask is None else mask)


def value_with(*places: tuple[int, ...], fill: float = float("nan"), shape: tuple[int, ...] = (2, 3, 4)) -> Tensor:
    value = torch.ones(shape)
    for place in places:
        value[place] = fill
    return value


def test_an_earlier_node_of_a_later_wave_comes_first() -> None:
    looking = observer()
    looking.see(seen_at(node_called("second"), value_with((1, 2, 0))))
    looking.see(seen_at(node_called("third"), value_with((0, 0, 0))))
    looking.see(seen_at(node_called("first"), value_with((0, 1, 3), (0, 2, 3)), first=2))
    looking.see(seen_at(node_called("second"), value_with((0, 1, 3)), first=2))
    (occurrence,) = looking.result.values()
    assert (occurrence.node, occurrence.sequence, occurrence.position) == ("first", 2, 1)
    assert (occurrence.tokens, occurrence.sequences, occurrence.nan, occurrence.infinite) == (2, 1, 2, 0)


def test_waves_of_one_node_add_up_and_the_first_token_stays() -> None:
    looking = observer()
    looking.see(seen_at(node_called("first"), value_with((1, 0, 0), (1, 0, 1), fill=float("inf"))))
    looking.see(seen_at(node_called("first"), value_with((0, 2, 3), (1, 2, 3)), first=2))
    (occurrence,) = looking.result.values()
    assert (occurrence.sequence, occurrence.position, occurrence.tokens, occurrence.sequences) == (1, 0, 3, 3)
    assert (occurrence.nan, occurrence.infinite) == (2, 2)


def test_padding_hides_no_real_token() -> None:
    mask = torch.ones(4, 3, dtype=torch.bool)
    mask[:, 0] = False
    looking = observer(mask)
    looking.see(seen_at(node_called("first"), value_with((0, 0, 1))))
    looking.see(seen_at(node_called("second"), value_with((0, 0, 1), (1, 2, 1))))
    places = {padding: (o.node, o.sequence, o.position) for (_, padding), o in looking.result.items()}
    assert places == {True: ("first", 0, 0), False: ("second", 1, 2)}


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_expert_is_that_of_the_slot(ranks: int) -> None:
    """Rows [B, T, K, H], of experts cut over ranks [B, ranks, T, K, H]."""
    ids = torch.tensor([[[5, 6], [7, 8], [9, 10]], [[11, 12], [13, 14], [15, 16]]])
    place = (1, 2, 1, 3) if ranks == 1 else (1, 1, 2, 1, 3)
    shape = (2, 3, 2, 4) if ranks == 1 else (2, ranks, 3, 2, 4)
    looking = observer()
    looking.see(seen_at(node_called("first", "experts"), value_with(place, shape=shape), partials=ranks, ids=ids))
    (occurrence,) = looking.result.values()
    assert (occurrence.sequence, occurrence.position, occurrence.expert) == (1, 2, 16)


def test_large_values_that_overflow_in_a_sum_are_finite() -> None:
    looking = observer()
    looking.see(seen_at(node_called("first"), torch.full((2, 3, 4), 60000.0, dtype=torch.float16)))
    assert looking.result == {}
