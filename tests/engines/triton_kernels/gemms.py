"""GEMMs. A tile's dot product is exact here in any order, so that what shows is the order of the tiles over K.

Tensor cores add the products of a tile to the accumulator a few at a time and in their own way; the interpreter adds up
a tile first. Of a tile's inside these cases say nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from moeparity.numerics.gemm import gemm
from tests.engines.triton_kernels.case import Case, Outputs, Seen
from tests.ops.plain import BF16, FP32, random

INSIDE = "the sum inside a tile of K (tensor cores)"


def tiled(rows: int, k: int, tile: int, seed: int, dtype: torch.dtype = BF16) -> Tensor:
    """[rows, k]: small integers; of three tiles of K the first is small, the second large, the third takes the second
    back, so that what is left of a sum are the roundings between tiles. Weights must repeat alike: `repeated`.
    """
    powers = torch.tensor([-9.0, 9.0, 9.0]).exp2() * torch.tensor([1.0, 1.0, -1.0])
    scale = powers.repeat(-(-k // tile) // 3 + 1).repeat_interleave(tile)[:k]
    return (repeated(rows, k, tile, seed).float() * scale).to(dtype)


def repeated(rows: int, k: int, tile: int, seed: int, dtype: torch.dtype = BF16) -> Tensor:
    """[rows, k] between -9 and 9, every third tile of K as the one before it."""
    x = integers(rows, -(-k // tile) * tile, seed).view(rows, -1, tile)
    third = x[:, 2::3].shape[1]
    x[:, 2::3] = x[:, 1::3][:, :third]
    return x.flatten(1)[:, :k].to(dtype)


def integers(rows: int, k: int, seed: int, dtype: torch.dtype = BF16) -> Tensor:
    """[rows, k] between -9 and 9."""
    return torch.randint(-9, 10, (rows, k), generator=torch.Generator().manual_seed(seed)).to(dtype)


def matmul_case(program: str, m: int, n: int, k: int, dtype: torch.dtype, *, bias: bool) -> Case:
    """K in tiles of 64 in bf16 and of 32 in fp32."""
    tile = 64 if dtype == BF16 else 32
    x, weight = tiled(m, k, tile, seed=k, dtype=dtype), repeated(n, k, tile, seed=n, dtype=dtype)
    added = random(n, dtype=dtype, seed=3) if bias else None

    def product(inside: int = tile) -> Outputs:
        order = f"blocks({inside}) | sequential"
        return {"output": gemm(x, weight, added, inputs=dtype, output=dtype, order=order)}

    at = {"inputs": dtype, "output": dtype, "splits": 1}
    inputs = {"x": x, "weight": weight} | ({} if program == "live_sglang" else {"bias": added})
    return Case(
        program=program,
        kernel="matmul_kernel_persistent",
        kind="matmul",
        shapes=f"{m} x {k} x {n} {'bf16' if dtype == BF16 else 'fp32'}{', bias' if bias else ''}",
        arguments=inputs,
        ours=product,
        other_outputs=lambda: product(tile // 2),
        says=f"one fp32 accumulator over tiles of {tile}, ascending; bias in fp32; one rounding",
        recorded=(Seen(op="linear", at=at, operands=dtype),),
        blind=INSIDE,
    )


def bmm_case(program: str, b: int, m: int, n: int, k: int) -> Case:
    """The GEMMs of a head in MLA."""
    x = torch.stack([tiled(m, k, 64, seed=i) for i in range(b)])
    weight = torch.stack([repeated(n, k, 64, seed=9 + i) for i in range(b)])

    def product(inside: int = 64) -> Outputs:
        order = f"blocks({inside}) | sequential"
        pairs = zip(x, weight, strict=True)
        return {"output": torch.stack([gemm(a, c, None, inputs=BF16, output=BF16, order=order) for a, c in pairs])}

    return Case(
        program=program,
        kernel="bmm_kernel" if program == "live_vllm" else "bmm_kernel_persistent",
        kind="bmm",
        shapes=f"{b} x {m} x {k} x {n} bf16",
        arguments={"a": x, "b": weight.transpose(1, 2).contiguous()},
        ours=product,
        other_outputs=lambda: product(32),
        says="one fp32 accumulator over tiles of 64, ascending; one rounding",
        recorded=(Seen(op="mla", at={"q_latent": BF16, "projection": "absorbed"}, blind=("projection",)),),
        blind=INSIDE,
    )


def cases() -> Iterator[Case]:
    """More tokens than a tile of 128, fewer; K with a tail."""
    for program in ("live_vllm", "live_sglang"):
        yield matmul_case(program, 5, 130, 202, BF16, bias=False)
        yield matmul_case(program, 135, 40, 256, BF16, bias=False)
        yield matmul_case(program, 3, 70, 106, FP32, bias=False)
        yield bmm_case(program, 3, 5, 40, 202)
    yield matmul_case("live_vllm", 5, 130, 202, BF16, bias=True)
