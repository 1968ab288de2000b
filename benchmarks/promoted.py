"""How many outputs of a GEMM of codes in fp8 change with how its sums are promoted, at large models' widths, as a GPU's
tensor cores add them up.

    python -m benchmarks.promoted
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from moeparity.numerics.block_scales import Grid
from moeparity.numerics.gemm import gemm
from moeparity.numerics.quantised import Codes, quantised, scaled_product

K = (256, 512, 2048, 4096, 7168)
ROWS, OUTPUTS, SEED = 64, 256, 20261201
FLAT, PROMOTED = "tensor_core(h100)", "tensor_core(h100, promote=128)"
FP32: Final = "native"
ORDERS = {
    "flat against promoted": (FLAT, PROMOTED),
    "flat against sums of fp32": (FLAT, FP32),
    "promoted against sums of fp32": (PROMOTED, FP32),
    "B200 against sums of fp32": ("tensor_core(b200)", FP32),
    "sums of fp32, another order": ("unordered(1)", FP32),
}
GEMMS = f"of {ROWS} rows and {OUTPUTS} outputs, normal numbers (seed {SEED}), codes and scales as above"
_GRID = Grid(
    dtype=torch.float8_e4m3fn, block=(1, 0), scale="fp32", scale_by="divided", quotient="divided", floor=1e-10
)  # fmt: skip


def shares(k: int) -> dict[str, float]:
    """Of each pair of orders, the share of bf16 outputs whose bits differ, in a GEMM with K inputs."""
    generator = torch.Generator().manual_seed(SEED + k)
    x, weight = (quantised(torch.randn(n, k, generator=generator), _GRID) for n in (ROWS, OUTPUTS))
    results = {order: _product(x, weight, order) for order in {o for pair in ORDERS.values() for o in pair}}
    return {title: float((results[ours] != results[theirs]).float().mean()) for title, (ours, theirs) in ORDERS.items()}


def _product(x: Codes, weight: Codes, order: str) -> Tensor:
    def sums(a: Tensor, b: Tensor) -> Tensor:
        return gemm(a, b, None, inputs=a.dtype, output=torch.float32, order=order)

    return scaled_product(
        x, weight, None, sums, part=None, scaling="both", addition="fma", output=torch.bfloat16
    )  # fmt: skip


def lines() -> Iterator[str]:
    """The shares as a table, a column for each K."""
    by_k = [shares(k) for k in K]
    yield f"| | {' | '.join(f'K {k:,}' for k in K)} |"
    yield "|---|" + "---|" * len(K)
    for title in ORDERS:
        yield f"| {title} | {' | '.join(f'{of[title]:.2%}' for of in by_k)} |"


if __name__ == "__main__":
    print(f"One GEMM {GEMMS}:", *lines(), sep="\n")
