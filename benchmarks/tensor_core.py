"""How quick products of tensor cores are: multiply-adds a second, eager and compiled, bf16 on one core.

    OMP_NUM_THREADS=1 python -m benchmarks.tensor_core

One line for each GPU and number of rows. Every compiled result is compared with the eager one.
"""

from __future__ import annotations

import argparse
import time

import torch

from moeparity.numerics.bits import same_bits
from moeparity.numerics.compiled import Executor
from moeparity.numerics.tensor_core.compiled import library
from moeparity.numerics.tensor_core.instructions import instruction
from moeparity.numerics.tensor_core.product import multiply_add

REPEATS = 5


def seconds(gpu: str, a: torch.Tensor, b: torch.Tensor, executor: Executor, repeats: int) -> tuple[float, torch.Tensor]:
    """The least of several runs, and the result."""
    row, best = instruction(gpu, "bf16"), float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        result = multiply_add(row, a, b, executor=executor)
        best = min(best, time.perf_counter() - start)
    return best, result


def main() -> None:
    """Time every case and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inner", type=int, default=1024, metavar="K", help="length of each sum")
    parser.add_argument("--columns", type=int, default=512, metavar="N", help="outputs of each row")
    sizes = parser.parse_args()
    k, n = sizes.inner, sizes.columns
    torch.set_num_threads(1)
    print(f"compiled: {library().why_eager or 'yes'}")
    print("gpu   rows  eager GMAC/s  compiled GMAC/s  ratio  same bits")
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(n, k, generator=generator).bfloat16()
    for gpu in ("h100", "a100"):
        for rows in (1, 64, 256):
            a = torch.randn(rows, k, generator=generator).bfloat16()
            slow, expected = seconds(gpu, a, weight.mT, "eager", 1 if rows > 1 else REPEATS)
            quick, result = seconds(gpu, a, weight.mT, "compiled", REPEATS)
            rates = [rows * k * n / t / 1e9 for t in (slow, quick)]
            same = same_bits(result, expected)
            print(f"{gpu}  {rows:4}  {rates[0]:12.3f}  {rates[1]:15.2f}  {slow / quick:5.0f}  {same}")


if __name__ == "__main__":
    main()
