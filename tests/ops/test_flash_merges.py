"""Segments of keys, merged as vLLM's Triton attention merges them; that its bits are these is shown by its PTX
(tests/engines/triton_kernels/test_attention_dots.py).
"""

from __future__ import annotations

import pytest
import torch

from moeparity.ops.attention import refuses_orders
from moeparity.ops.attribute import RefusedError
from moeparity.ops.kernels.attention import attention
from tests.engines.triton_kernels.attention_dots import triton_at
from tests.ops.plain import BF16, FP32

SEGMENTS = {"splits": 16, "kv_block": 16, "split_by": "tiles", "merge": "segments", "output": FP32}


def run(width: int, keys: int, **at: object) -> torch.Tensor:
    g = torch.Generator().manual_seed(width)
    q, k, v = (torch.randn(1, 2, n, width, generator=g).to(BF16) for n in (3, keys, keys))
    mask = torch.ones(1, keys, dtype=torch.bool)
    return attention(q, k, v, mask, w={}, p={"window": None}, at=triton_at(**at))


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("keys", [4, 40, 600])
def test_segments_are_one_attention(width: int, keys: int) -> None:
    merged, whole = run(width, keys, **SEGMENTS), run(width, keys, output=FP32, kv_block=16)
    torch.testing.assert_close(merged, whole, atol=2e-3, rtol=0)
    assert torch.equal(merged, whole) == (keys == 4)


def test_widths_that_were_not_run_are_refused() -> None:
    with pytest.raises(RefusedError, match="merge: values are 32 wide, and segments were merged of 64, 128 in fp32"):
        run(32, 40, **SEGMENTS)


@pytest.mark.parametrize(
    ("changed", "refused"),
    [
        ({"splits": 8}, "merge"),
        ({"exponential": "exp"}, "merge"),
        ({"normalize": "divide"}, "merge"),
        ({"order": "tensor_core(h100)"}, "merge"),
        ({"scale_on": "query"}, "scale_on"),
        ({"scores_order": "tensor_core(h100, promote=128)"}, "scores_order"),
        ({"values_order": "tensor_core(v100)"}, "values_order"),
        ({"probabilities": "fp32"}, "scores_order"),
        ({"kv_block": "l2", "splits": 1, "merge": "at_once"}, "kv_block"),
    ],
)
def test_what_these_kernels_do_not_do_is_refused(changed: dict[str, str | int], refused: str) -> None:
    values = triton_at(**SEGMENTS) | {"probabilities": "bf16", "output": "bf16"}
    assert refuses_orders(values) is None
    refusal = refuses_orders(values | changed)
    assert refusal is not None
    assert refusal[0] == refused
