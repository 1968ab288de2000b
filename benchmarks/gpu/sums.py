"""Order-exact sums on this device: the bits of the CPU's, and their time in multiples of a copy of the same bytes.

On a GPU also the orders that profiles state of torch's own kernels there, held to these kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.budget import Budget
from benchmarks.gpu.kernel_orders import kernel_rows
from benchmarks.orders import ORDERS
from benchmarks.turns import Work, in_turn, settle
from moeparity.numerics.bits import same_bits
from moeparity.numerics.dtypes import torch_dtype
from moeparity.numerics.orders import parse
from moeparity.numerics.summation import sum_axis

ROWS, HIDDEN, REPEATS = 16384, 7168, 5
COMPARED = 64
"""Rows that are summed on the CPU too."""

DTYPES = ("fp32", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One order and dtype: whether the first rows' sums have the CPU's bits, and the time in copies."""

    order: str
    dtype: str
    same_as_cpu: bool
    copies: float


def measure(device: torch.device, budget: Budget, tiny: bool) -> dict[str, Any]:
    """Rows; torch's own sum and the copy, by dtype; the orders that there was no time for."""
    shape, repeats = ((256, 96), 1) if tiny else ((ROWS, HIDDEN), REPEATS)
    rows, natives, not_run = [], {}, []
    for dtype in DTYPES:
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(torch_dtype(dtype))
        there, target = x.to(device), torch.empty(shape, dtype=x.dtype, device=device)
        works: dict[str, Work] = {
            "copy": _settled(partial(target.copy_, there), device),
            "native": _settled(partial(there.sum, -1), device),
        }
        copies, copy = in_turn(works, "copy", repeats)
        natives[dtype] = {"copies": copies["native"], "gb_per_s": 2 * x.numel() * x.element_size() / copy / 1e9}
        for order in ORDERS:
            if budget.spent:
                not_run.append(f"{order}, {dtype}")
                continue
            same = same_bits(summing(there[:COMPARED], order)().cpu(), summing(x[:COMPARED], order)())
            timed = {"copy": works["copy"], order: _settled(summing(there, order), device)}
            copies, _ = in_turn(timed, "copy", repeats)
            rows.append(Row(order=order, dtype=dtype, same_as_cpu=same, copies=copies[order]))
    # They are CUDA's: a CPU adds in other orders.
    kernels = kernel_rows(device) if device.type == "cuda" else []
    return {"shape": list(shape), "rows": rows, "native": natives, "kernels": kernels, "not_run": not_run}


def summing(x: torch.Tensor, order: str) -> Callable[[], torch.Tensor]:
    """The sum of each row in that order, every addition rounded to the rows' dtype, one kernel a step."""
    parsed = parse(order)
    return lambda: sum_axis(x, parsed, -1, accumulate=x.dtype, executor="eager")


def _settled(work: Work, device: torch.device) -> Work:
    def run() -> None:
        work()
        settle(device)

    return run
