"""What explicit summation orders over a hidden dimension cost, as multiples of a copy of the same bytes.

    python -m benchmarks.orders [--threads 1] [--rows 4096] [--hidden 7168] [--repeats 5]

Rows are summed along their last axis by the executor of orders, eagerly and compiled by Inductor; the copy, torch's own
sum and every order take turns in one process, and the median of the rounds' ratios counts. The first sum of each, which
also works out its steps, compiles them and holds them against the eager ones, is timed apart. `auto` says which of both
a long run ends up with. Freed memory is kept, as a pass of the engine does. Exits with 1 when an order of `BOUNDED`
takes more copies than stated there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import torch

from benchmarks.turns import Work, header, in_turn, seconds
from moeparity.inputs.machine import keep_freed_memory
from moeparity.numerics import compiled
from moeparity.numerics.bits import same_bits
from moeparity.numerics.compiled import Executor
from moeparity.numerics.dtypes import torch_dtype
from moeparity.numerics.orders import parse
from moeparity.numerics.summation import sum_axis

BOUNDED = {"fold_hi": 4.0, "lanes(1024) | fold_hi": 4.0}
"""Orders of fp32 rows, and the copies they may take eagerly."""

ORDERS = (*BOUNDED, "fold_lo", "threads(896, vector=8) | fold_hi(32) | fold_hi", "cascade")
DTYPES = ("fp32", "bf16")
EXECUTORS: tuple[Executor, ...] = ("eager", "compiled")


def main() -> int:
    """Measure, print, judge."""
    options = _options()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    print(header(options.threads))
    over = False
    for name in DTYPES:
        costs = table(options.rows, options.hidden, name, options.repeats)
        over |= name == "fp32" and any(costs[order, "eager"] > most for order, most in BOUNDED.items())
    return int(over)


def table(rows: int, hidden: int, name: str, repeats: int) -> dict[tuple[str, Executor], float]:
    """Print the table of one dtype; the copies that each order takes by each executor."""
    dtype = torch_dtype(name)
    x = torch.randn(rows, hidden, generator=torch.Generator().manual_seed(0)).to(dtype)
    target = torch.empty_like(x)
    works: dict[str, Work] = {"copy": lambda: target.copy_(x), "native": lambda: x.sum(-1)}
    work_of = {(order, executor): _summing(x, order, executor) for order in ORDERS for executor in EXECUTORS}
    first = {which: seconds(work) for which, work in work_of.items()}
    for order in ORDERS:
        assert same_bits(*(work_of[order, executor]() for executor in EXECUTORS)), order
    works |= {f"{order}, {executor}": work for (order, executor), work in work_of.items()}
    copies, copy = in_turn(works, "copy", repeats)
    rate = x.numel() * x.element_size() / copy / 1e9
    print(f"\n{name} rows [{rows}, {hidden}], every addition rounded to {name}, median of {repeats} rounds")
    print(f"copy {rate:.1f} GB/s each way at best; torch's own sum {copies['native']:.2f} copies\n")
    print(f"| {'copies':50} | eager | compiled | auto     | first eager | first compiled |")
    print(f"|{'-' * 52}|------:|---------:|----------|------------:|---------------:|")
    # The first run of rows decides; the last one is shorter, and a family of its own.
    settled = {family.name.split(" over ")[0]: family.why_eager for family in reversed(compiled.families())}
    for order in ORDERS:
        eager, quick = (copies[f"{order}, {executor}"] for executor in EXECUTORS)
        auto = "compiled" if settled[order] is None else "eager"
        starts = f"{first[order, 'eager']:9.1f} s | {first[order, 'compiled']:12.1f} s"
        print(f"| {order.replace('|', chr(92) + '|'):50} | {eager:5.2f} | {quick:8.2f} | {auto:8} | {starts} |")
    compiled.forget()
    return {(order, executor): copies[f"{order}, {executor}"] for order, executor in work_of}


def _summing(x: torch.Tensor, order: str, executor: Executor) -> Callable[[], torch.Tensor]:
    parsed = parse(order)
    return lambda: sum_axis(x, parsed, -1, accumulate=x.dtype, executor=executor)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
