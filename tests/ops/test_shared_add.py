"""The addition of the shared expert against plain torch, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from moeparity.ops.kernels.elementwise import shared_add
from moeparity.ops.router import ROUTER
from tests.ops.plain import BF16, DTYPES, FP32, assert_bits, plus, random, times

SCALE = 2.7
ROUTED, SHARED = random(2, 5, 37, dtype=BF16), random(2, 5, 37, dtype=BF16, seed=1)


def added(routed: Tensor, shared: Tensor | None, scaling: str, output: torch.dtype) -> Tensor:
    at: dict[str, Any] = {"shared": "add", "scaling": scaling, "output": output}
    return shared_add(routed, shared, w={}, p={"scale": SCALE}, at=at)


@pytest.mark.parametrize("output", DTYPES)
def test_scaled_with_two_roundings_and_with_one(output: torch.dtype) -> None:
    scale = torch.tensor(SCALE)
    assert_bits(added(ROUTED, SHARED, "weights", output), plus(ROUTED, SHARED, output))
    apart = plus(times(ROUTED, scale, FP32), SHARED, output)
    assert_bits(added(ROUTED, SHARED, "shared_add", output), apart)
    # The product of 8 and 24 bits is exact in fp64, and these sums are but for ties.
    contracted = (ROUTED.double() * scale.double() + SHARED.double()).float().to(output)
    assert_bits(added(ROUTED, SHARED, "shared_fma", output), contracted)
    assert output != FP32 or not torch.equal(apart, contracted)


@pytest.mark.parametrize("output", DTYPES)
def test_what_the_combine_has_added_is_handed_on(output: torch.dtype) -> None:
    assert_bits(added(ROUTED.float() * 1.1, None, "weights", output), (ROUTED.float() * 1.1).to(output))


@pytest.mark.parametrize("scaling", ["weights", "shared_add"])
def test_partial_sums(scaling: str) -> None:
    """The first rank adds what is whole; routed sums are scaled on every rank, shared ones on none."""
    parts = random(2, 3, 5, 37, dtype=BF16, seed=2)
    scaled = parts.float() * SCALE if scaling == "shared_add" else parts.float()
    ours = added(parts, SHARED, scaling, FP32)
    assert_bits(ours[:, 0], plus(scaled[:, 0], SHARED, FP32))
    assert_bits(ours[:, 1:], scaled[:, 1:])
    computed = added(parts, parts.flip(1), scaling, FP32)
    assert_bits(computed, plus(scaled, parts.flip(1), FP32))
    routed = ROUTED.float() * SCALE if scaling == "shared_add" else ROUTED.float()
    whole = added(ROUTED, parts, scaling, FP32)
    assert_bits(whole[:, 0], plus(routed, parts[:, 0], FP32))
    assert_bits(whole[:, 1:], parts[:, 1:].float())


GIVEN = {"experts": (12,), "top_k": (5,), "groups": (1,), "top_groups": (1,), "shared": (False,)}
REFUSED = {
    "a bias": ({"bias": (12,)}, {"rank_on": "logits"}, "rank_on"),
    "groups": ({"groups": (4,)}, {"timing": "after_topk"}, "timing"),
    "no shared expert": ({}, {"scaling": "shared_add"}, "scaling"),
    "uneven groups": ({"groups": (4,), "top_groups": (2,)}, {"group_score": "topk_share_sum"}, "group_score"),
    "small groups": ({"groups": (4,), "top_k": (4,)}, {"group_score": "topk_share_sum"}, "group_score"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_router_that_no_shipped_graph_has_is_refused(name: str) -> None:
    shapes, values, attribute = REFUSED[name]
    assert ROUTER.refusals.values is not None
    assert ROUTER.refusals.values(GIVEN, {}) is None
    refusal = ROUTER.refusals.values({**GIVEN, **shapes}, values)
    assert refusal is not None
    assert refusal[0] == attribute
