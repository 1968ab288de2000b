"""Sequences and tokens at which two walkers differ: counted token by token, at every port, whatever the layout."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from moeparity.bisection.divergence.extent import Extent, other_values
from moeparity.bisection.divergence.observe import DivergenceObserver, NodeRecord
from moeparity.engine.values import Block
from moeparity.engine.view import NodeView
from moeparity.ops.registry import OPS
from tests.bisection.test_observers import CANDIDATE, REFERENCE, SHADOW, node, unasked
from tests.grids import block, grid

FIRST = 6
"""The first sequence of the wave."""
WAVE = (FIRST, FIRST + 4)


def seen_at(
    op: str, ours: Sequence[Tensor], theirs: Sequence[Tensor], *, partials: tuple[int, int] = (1, 1)
) -> NodeView:
    """One micro-batch of four sequences, of which both sides read the same."""

    axis = OPS[op].tokens.axis
    cut = grid(ours[0].shape[axis + (partials[0] > 1)], 0, *WAVE)

    def blocks(values: Sequence[Tensor], identity: int, parts: int) -> tuple[list[Block], ...]:
        value_axis = axis + (parts > 1)
        return tuple([block(value, FIRST, [identity], cut, partials=parts, axis=value_axis)] for value in values)

    outputs = {REFERENCE: blocks(ours, 0, partials[0]), CANDIDATE: blocks(theirs, 1, partials[1])}
    read = ([block(torch.zeros(4, cut.length), FIRST, [0], cut)], *[None] * (len(OPS[op].inputs) - 1))
    return NodeView(node(op), WAVE, cut, outputs, dict.fromkeys(outputs, read), {}, {}, {}, unasked)


def marked(view: NodeView) -> list[tuple[int, ...]]:
    return [
        tuple(place)
        for place in other_values(view, REFERENCE, CANDIDATE, view.tokens_of(view.cells)).nonzero().tolist()
    ]


def values(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).bfloat16()


def changed(value: Tensor, *place: int) -> Tensor:
    flipped_sign = value.clone()
    flipped_sign[place] = -flipped_sign[place]
    return flipped_sign


def test_one_value_of_one_token_is_one_token_of_one_sequence() -> None:
    ours = values(4, 3, 8)
    view = seen_at("add", [ours], [changed(ours, 2, 1, 7)])
    assert marked(view) == [(2, 1)]
    assert record(view).root_values == Extent(sequences=1, tokens=1, pads=0)
    assert record(view).root_cells == Extent(sequences=4, tokens=12, pads=0)


def test_tokens_are_found_on_their_own_axis() -> None:
    """Rope's values stand by heads, [B, H, T, D]; of two ports either may differ."""
    q, k = values(4, 2, 3, 8), values(4, 1, 3, 8)
    assert marked(seen_at("rope", [q, k], [q, changed(k, 3, 0, 2, 5)])) == [(3, 2)]


def test_partial_sums_count_though_their_sums_are_equal() -> None:
    ours = values(4, 2, 3, 8)
    swapped = ours.flip(1).contiguous()
    assert len(marked(seen_at("linear", [ours], [swapped], partials=(2, 2)))) == 12
    assert len(marked(seen_at("linear", [ours], [ours[:, 0]], partials=(2, 1)))) == 12


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_another_dtype_alone_is_no_other_value(dtype: torch.dtype) -> None:
    ours = values(4, 3, 8).clamp(-4, 4)
    view = seen_at("add", [ours], [ours.to(dtype)])
    assert marked(view) == []
    assert record(view).root_values == Extent()
    assert record(view).root_cells == Extent(sequences=4, tokens=12, pads=0)
    assert marked(seen_at("add", [ours], [changed(ours, 0, 2, 1).to(dtype)])) == [(0, 2)]


def test_every_port_counts() -> None:
    """A router's weights may be equal, in another dtype too, and its ids not."""
    ids, weights = torch.arange(24).view(4, 3, 2), values(4, 3, 2)
    others = ids.clone()
    others[1, 0] = others[1, 0].flip(-1)
    assert marked(seen_at("router", [ids, weights], [others, weights])) == [(1, 0)]
    assert marked(seen_at("router", [ids, weights], [others, weights.float()])) == [(1, 0)]
    assert marked(seen_at("router", [ids, weights], [ids, weights.float()])) == []


def test_the_sign_of_zero_and_nan_are_values() -> None:
    zeros = torch.zeros(4, 3, 8)
    negative, undefined = zeros.clone(), zeros.clone()
    negative[0, 0, 0], undefined[1, 2, 3] = -0.0, float("nan")
    assert marked(seen_at("add", [zeros], [negative])) == [(0, 0)]
    assert marked(seen_at("add", [zeros], [undefined])) == [(1, 2)]
    assert marked(seen_at("add", [undefined], [undefined.clone()])) == []


def test_padding_is_counted_apart() -> None:
    ours = values(4, 3, 8)
    view = seen_at("add", [ours], [changed(changed(ours, 2, 0, 7), 2, 1, 0)])
    mask = torch.ones(10, 3, dtype=torch.bool)
    mask[8, 0] = False
    assert record(view, mask).root_values == Extent(sequences=1, tokens=2, pads=1)


def record(view: NodeView, mask: Tensor | None = None) -> NodeRecord:
    observer = DivergenceObserver((REFERENCE, CANDIDATE), (REFERENCE, SHADOW), mask)
    observer.see(view)
    (only,) = observer.result.values()
    return only
