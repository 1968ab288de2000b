"""What a fingerprint of weights costs: MB of bf16 a second on one thread, by wide rows and by narrow ones.

    python -m benchmarks.weights [--megabytes 64]

Each figure is the median of five. Cutting a tensor into columns costs a second sum, of what does not depend on where a
part lies.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from benchmarks.turns import header
from moeparity.evidence.weights.part import part

WIDTHS = (2048, 128)


def main() -> None:
    """Print a line for each kind of tensor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=64)
    args = parser.parse_args()
    print(header(torch.get_num_threads()))
    for width in WIDTHS:
        values = torch.randn(args.megabytes * 500_000 // width, width).to(torch.bfloat16)
        whole = _rate(values, start=0)
        print(f"rows of {width}: {whole:,.0f} MB/s whole, {_rate(values, start=width):,.0f} MB/s as columns")


def _rate(values: torch.Tensor, start: int) -> float:
    """MB a second of one part."""
    shape = (len(values), values.shape[1] + start)
    seconds = []
    for _ in range(5):
        begun = time.perf_counter()
        part("weight", values, shape=shape, start=(0, start))
        seconds.append(time.perf_counter() - begun)
    return values.nbytes / 1e6 / statistics.median(seconds)


if __name__ == "__main__":
    main()
