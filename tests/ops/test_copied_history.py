"""An op that says it copies what it reads of earlier tokens: views anywhere in memory give the bits of copies."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from moeparity.numerics.bits import same_bits
from moeparity.ops.attention import ATTENTION
from moeparity.ops.kernels.attention import attention

DTYPES = (torch.bfloat16, torch.float32)


def views_and_copies(x: torch.Tensor, axis: int, first: int, keys: int) -> tuple[torch.Tensor, torch.Tensor]:
    view = x.narrow(axis, first, keys)
    return view, view.new_empty(view.shape).copy_(view)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 2, 2), (3, 1, 4), (3, 2, 4)])
@pytest.mark.parametrize(("first", "keys", "queries"), [(0, 11, 1), (1, 7, 1), (3, 5, 5), (1, 1, 1)])
def test_views_of_a_cache(
    dtype: torch.dtype, implementation: str, shape: tuple[int, int, int], first: int, keys: int, queries: int
) -> None:
    sequences, groups, heads = shape
    draw = torch.Generator().manual_seed(0)
    q = torch.randn(sequences, heads, queries, 12, generator=draw).to(dtype)
    k_view, k = views_and_copies(torch.randn(sequences, groups, 19, 12, generator=draw).to(dtype), 2, first, keys)
    v_view, v = views_and_copies(torch.randn(sequences, groups, 19, 12, generator=draw).to(dtype), 2, first, keys)
    mask_view, mask = views_and_copies(torch.ones(sequences, 19, dtype=torch.bool), 1, first, keys)
    at: dict[str, Any] = {"implementation": implementation, "softmax": "native", "tf32": "no", "kv_layout": "cached"}
    at |= dict.fromkeys(("scores", "probabilities", "output"), dtype)
    assert ATTENTION.tokens.copies_history(at)
    ours = attention(q, k_view, v_view, mask_view, w={}, p={"window": None}, at=at)
    assert same_bits(ours, attention(q, k, v, mask, w={}, p={"window": None}, at=at))


@pytest.mark.parametrize("layout", ["projected", "static"])
def test_layouts_that_hand_on_what_they_are_given_are_not_handed_views(layout: str) -> None:
    assert not ATTENTION.tokens.copies_history({"implementation": "sdpa", "kv_layout": layout})
