"""Attention as FlashAttention 2 computes it on a GPU: held to an evaluation of one number at a time, in fractions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from moeparity.errors import SpecError
from moeparity.numerics.bits import same_bits
from moeparity.numerics.special_functions.functions import approximate
from moeparity.numerics.tensor_core.instructions import instruction
from moeparity.ops.attribute import RefusedError
from moeparity.ops.kernels.attention import attention
from tests.numerics.scalar import FP32, nearest
from tests.numerics.tensor_core import scalar
from tests.ops.flash_by_hand import PLAIN
from tests.plan.test_gpu import QUICKSTART, plan
from tests.recorded.files import count_of_others

BF16, FP16 = torch.bfloat16, torch.float16
NAMES = {BF16: "bf16", FP16: "fp16"}
GPUS = [("a100", BF16), ("h100", BF16), ("h100", FP16), ("l40s", BF16)]
SMALL = 2.0**-126


def fp32(x: Fraction | float) -> float:
    """To nearest; subnormal results are zeros."""
    value = x if isinstance(x, float) and not math.isfinite(x) else nearest(Fraction(x), FP32)
    return 0.0 if abs(value) < SMALL else float(value)


def fma(a: float, b: float, c: float) -> float:
    finite = all(map(math.isfinite, (a, b, c)))
    return fp32(Fraction(a) * Fraction(b) + Fraction(c)) if finite else a * b + c


def special(name: str, x: float) -> float:
    """Held to an H200's outputs in tests/numerics/special_functions."""
    return float(approximate(name, torch.tensor([x]), ftz=True)[0])


def chain(gpu: str, dtype: torch.dtype, a: list[float], b: list[float], c: float) -> float:
    of_gpu, name = instruction(gpu, NAMES[dtype]).dot_add, NAMES[dtype]
    for start in range(0, len(a), of_gpu.products):
        at = slice(start, start + of_gpu.products)
        c = scalar.dot_add(a[at], b[at], c, (name, name), of_gpu.fraction, "fp32", of_gpu.floor)
    return c


def tiles(count: int, block: int) -> Iterator[range]:
    """The last first."""
    for start in reversed(range(0, count, block)):
        yield range(start, min(start + block, count))


def row(gpu: str, q: Tensor, k: Tensor, v: Tensor, visible: list[bool], block: int) -> list[float]:
    """The output of one query q [D] to keys k [S, D] and values v [S, V], before it is rounded to 16 bits."""
    dtype, width = q.dtype, q.shape[0]
    factor = fp32(Fraction(fp32(width**-0.5)) * Fraction(math.log2(math.e)))
    highest, threads, out = -math.inf, [0.0] * 4, [0.0] * v.shape[1]
    for tile in tiles(len(k), block):
        scores = [chain(gpu, dtype, q.tolist(), k[j].tolist(), 0.0) if visible[j] else -math.inf for j in tile]
        before, highest = highest, max(highest, *scores)
        most = 0.0 if highest == -math.inf else highest
        shrunk = special("ex2", (before - most) * factor if before == -math.inf else fp32(
            Fraction(fp32(Fraction(before) - Fraction(most))) * Fraction(factor)))  # fmt: skip
        p = [special("ex2", fma(score, factor, -fp32(Fraction(most) * Fraction(factor)))) for score in scores]
        for thread in range(4):
            columns = [x for j, x in enumerate(p) if j % 8 // 2 == thread] or [0.0]
            threads[thread] = fma(threads[thread], shrunk, columns[0])
            for x in columns[1:]:
                threads[thread] = fp32(Fraction(threads[thread]) + Fraction(x))
        weights = torch.tensor(p).to(dtype).tolist()
        for i in range(len(out)):
            out[i] = chain(
                gpu, dtype, weights, v[tile.start : tile.stop, i].tolist(), fp32(Fraction(out[i]) * Fraction(shrunk))
            )
    total = fp32(
        Fraction(fp32(Fraction(threads[0]) + Fraction(threads[2])))
        + Fraction(fp32(Fraction(threads[1]) + Fraction(threads[3])))
    )
    inverse = special("rcp", total or 1.0)
    return [fp32(Fraction(x) * Fraction(inverse)) for x in out]


def by_hand(gpu: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, block: int, window: int | None = None) -> Tensor:
    """q [B, H, T, D], k and v [B, G, S, D] -> [B, T, H * D] in q's dtype."""
    batch, heads, queries, _ = q.shape
    keys, shared = k.shape[2], heads // k.shape[1]
    out = torch.zeros(batch, queries, heads, v.shape[-1])
    for b, h, t in torch.cartesian_prod(*map(torch.arange, (batch, heads, queries))).tolist():
        last = keys - queries + t
        visible = [j <= last and j > last - (window or keys) and bool(mask[b, j]) for j in range(keys)]
        out[b, t, h] = torch.tensor(row(gpu, q[b, h, t], k[b, h // shared], v[b, h // shared], visible, block))
    return out.flatten(2).to(q.dtype)


def ours(
    order: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, block: int, window: int | None = None, **at: Any
) -> Tensor:
    at = {**PLAIN, "order": order, "kv_block": block, "rows": "all", "probabilities": q.dtype, "output": q.dtype, **at}
    return attention(q, k, v, mask, w={}, p={"window": window}, at={**at, "split": torch.float32})


def drawn(
    dtype: torch.dtype, queries: int, keys: int, *, seed: int = 0, width: int = 24
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two sequences, four query heads on two key heads; products that nearly cancel, so that a score shows where it is
    cut off, and scores that rise, so that a tile rescales what came before.
    """
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, heads, tokens, width, generator=generator)
               for heads, tokens in ((4, queries), (2, keys), (2, keys)))  # fmt: skip
    q[..., 1::2], k[..., 1::2] = (
        q[..., ::2],
        -k[..., ::2] * (1 + torch.randn(2, 2, keys, width // 2, generator=generator) / 4),
    )
    v = torch.where(torch.rand(v.shape, generator=generator) < 0.5, v, -v * 1.01)
    return (q * 4).to(dtype), (k * 4).to(dtype), v.to(dtype), torch.ones(2, keys, dtype=torch.bool)


@pytest.mark.parametrize(("gpu", "dtype"), GPUS)
@pytest.mark.parametrize(("queries", "keys"), [(9, 9), (1, 19), (2, 16)])
def test_bits_are_those_of_one_number_at_a_time(gpu: str, dtype: torch.dtype, queries: int, keys: int) -> None:
    """Causal, with grouped heads, a width that 16 does not divide, odd lengths, and a single query."""
    q, k, v, mask = (of[:1] for of in drawn(dtype, queries, keys))
    assert same_bits(ours(f"tensor_core({gpu})", q, k, v, mask, 8), by_hand(gpu, q, k, v, mask, 8))


def test_padding_and_a_window() -> None:
    q, k, v, mask = drawn(BF16, 9, 9)
    mask[0, :4] = False
    assert same_bits(ours("tensor_core(h100)", q, k, v, mask, 8, 5), by_hand("h100", q, k, v, mask, 8, 5))
    assert not ours("tensor_core(h100)", q, k, v, mask, 8)[0, :4].any()


def test_no_query_depends_on_others() -> None:
    q, k, v, mask = drawn(BF16, 21, 21)
    whole = ours("tensor_core(h100)", q, k, v, mask, 8)
    assert same_bits(ours("tensor_core(h100)", q[:, :, -1:], k, v, mask, 8), whole[:, -1:])
    assert same_bits(ours("tensor_core(h100)", q[:1], k[:1], v[:1], mask[:1], 8), whole[:1])


def test_neighbours_give_other_bits() -> None:
    """So the tests above can tell: another GPU, tiles from the first on, other tiles, and torch's products."""
    q, k, v, mask = drawn(FP16, 40, 40, width=32)

    def in_fp32(order: str, block: int = 8, **at: Any) -> Tensor:
        return ours(order, q, k, v, mask, block, output=torch.float32, **at)

    of_h100 = in_fp32("tensor_core(h100)")
    others = {
        "a100": in_fp32("tensor_core(a100)"),
        "ascending": in_fp32("tensor_core(h100)", kv_order="ascending"),
        "tiles of 16": in_fp32("tensor_core(h100)", 16),
        "native": in_fp32("native"),
    }
    shares = {name: count_of_others(of_h100, values) / of_h100.numel() for name, values in others.items()}
    assert min(shares.values()) > 0.01, shares


def test_a_side_on_a_gpu_attends_as_it_does() -> None:
    bound = plan(QUICKSTART, profile="vllm", gpu="h100")
    attends = [bound.active(node) for node in bound.graph.nodes if node.op.name == "attention"]
    assert {values["order"] for values in attends} == {"tensor_core(h100)"}
    assert all("row_sum" not in values and "exponential" not in values for values in attends)
    # torch's own kernel stays what it is.
    eager = plan(QUICKSTART, profile="hf-eager", gpu="h100")
    assert all("order" not in eager.active(node) for node in eager.graph.nodes if node.op.name == "attention")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"order": "tensor_core(h100, promote=128)"}, "begins chains anew, which attention does not"),
        ({"order": "sequential"}, "expected one of native, tensor_core"),
        ({"order": "cublaslt(h100: bf16 bf16 8x8 1=1)"}, "expected one of native, tensor_core"),
        ({"order": "tensor_core(h100)", "probabilities": "fp32"}, "such kernels multiply 16-bit numbers"),
        ({"order": "tensor_core(t4)"}, "t4 mma: bf16 x bf16 -> fp32: the GPU has no such instruction"),
    ],
)
def test_what_the_kernel_does_not_do_is_refused(values: dict[str, str], reason: str) -> None:
    at = {f"**.attend:{name}": value for name, value in values.items()}
    with pytest.raises(SpecError, match=reason):
        plan(QUICKSTART, profile="vllm", set=at)


def test_operands_of_other_dtypes_are_refused() -> None:
    q, k, v, mask = drawn(BF16, 3, 3)
    with pytest.raises(
        RefusedError, match="queries, keys and values are bf16, fp32, and kernels on tensor cores take one"
    ):
        ours("tensor_core(h100)", q, k.float(), v, mask, 8)
