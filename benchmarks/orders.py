"""What explicit summation orders over a hidden dimension cost, as multiples of a copy of the same bytes.

    python -m benchmarks.orders [--threads 1] [--rows 4096] [--hidden 7168] [--repeats 5]

Rows are summed along their last axis by the executor of orders, eagerly; the copy, torch's own sum and every order take
turns in one process, and the best of some repeats counts. The first sum in an order, which also works out its steps, is
timed apart. Exits with 1 when an order of `BOUNDED` takes more copies than stated there.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import torch

from moeparity.engine.device import cpu_name
from moeparity.numerics.dtypes import torch_dtype
from moeparity.numerics.orders import Order, parse
from moeparity.numerics.summation import sum_axis

BOUNDED = {"fold_hi": 4.0, "lanes(1024) | fold_hi": 4.0}
"""Orders of fp32 rows, and the copies they may take."""

ORDERS = (*BOUNDED, "fold_lo", "threads(896, vector=8) | fold_hi(32) | fold_hi", "cascade")
DTYPES = ("fp32", "bf16")

Work = Callable[[], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds: of one copy, of torch's own sum, and by order of the first sum and of the best of the later ones."""

    copy: float
    native: float
    first: dict[str, float]
    best: dict[str, float]


def main() -> int:
    """Measure, print, judge."""
    options = _options()
    torch.set_num_threads(options.threads)
    print(f"{datetime.now(UTC):%Y-%m-%d}, {cpu_name()}, {options.threads} threads, torch {torch.__version__}")
    print(f"rows [{options.rows}, {options.hidden}] summed along the last axis, best of {options.repeats}")
    over = []
    for name in DTYPES:
        dtype = torch_dtype(name)
        x = torch.randn(options.rows, options.hidden, generator=torch.Generator().manual_seed(0)).to(dtype)
        found = measure(x, options.repeats)
        size = x.numel() * x.element_size()
        print(f"\n{name}, every addition rounded to {name}: copy {size / found.copy / 1e9:.1f} GB/s each way, ", end="")
        print(f"torch's own sum {found.native / found.copy:.2f} copies")
        print(f"{'order':52} {'copies':>7} {'first':>8}")
        for order, seconds in found.best.items():
            print(f"{order:52} {seconds / found.copy:7.2f} {found.first[order]:6.2f} s")
        over += [o for o, most in BOUNDED.items() if name == "fp32" and found.best[o] > most * found.copy]
    return int(bool(over))


def measure(x: torch.Tensor, repeats: int) -> Measured:
    """The copy, torch's own sum and all orders in turn."""
    target = torch.empty_like(x)
    works: dict[str, Work] = {"copy": lambda: target.copy_(x), "native": lambda: x.sum(-1)}
    works |= {order: _summing(x, parse(order)) for order in ORDERS}
    first = {name: _seconds(work) for name, work in works.items()}
    best = dict.fromkeys(works, float("inf"))
    for _ in range(repeats):
        best = {name: min(best[name], _seconds(work)) for name, work in works.items()}
    return Measured(
        copy=best.pop("copy"), native=best.pop("native"), first={order: first[order] for order in ORDERS}, best=best
    )


def _summing(x: torch.Tensor, order: Order) -> Work:
    return lambda: sum_axis(x, order, -1, accumulate=x.dtype)


def _seconds(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
