"""How long `moeparity kernel probe` takes over the hidden dimension of DeepSeek-V3: `python -m benchmarks.probe`.

A GEMM, a sum and an RMSNorm of torch over 7168 values, each probed in this process as the command does, on one thread.
Prints a table in Markdown: seconds of the thread, which other work on the machine does not lengthen, beside seconds of
the clock. Exits with 1 where the thread takes longer than its limit, or an order is not found.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from benchmarks.turns import header
from moeparity.numerics.dtypes import torch_dtype
from moeparity.probe.calls import Setup
from moeparity.probe.find import Result, probe
from moeparity.probe.target import KINDS, Function

N, SHOWN = 7168, 40


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A GEMM."""
    return F.linear(x, weight)


def row_sum(x: torch.Tensor) -> torch.Tensor:
    """A sum."""
    return x.sum(-1)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """An RMSNorm."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel, and the most seconds its probe may take."""

    name: str
    kind: str
    dtype: str
    limit: float


KERNELS: dict[str, Callable[..., torch.Tensor]] = {"linear": linear, "row_sum": row_sum, "rms_norm": rms_norm}
CASES = (
    Case("linear", "linear", "fp32", 10.0),
    Case("linear", "linear", "bf16", 10.0),
    Case("row_sum", "sum", "fp32", 10.0),
    Case("row_sum", "sum", "bf16", 10.0),
    Case("rms_norm", "rms_norm", "fp32", 60.0),
    Case("rms_norm", "rms_norm", "bf16", 60.0),
)


def main() -> int:
    """Probe each, print a row each."""
    torch.set_num_threads(1)
    print(header(1))
    print(f"\n| n = {N} | dtype | probes | s of the thread | limit | s of the clock | order | replayed |")
    print("|---|---|---:|---:|---:|---:|---|---|")
    return max(row(case) for case in CASES)


def row(case: Case) -> int:
    """Print what probing one kernel took; 1 where that is too long, or an order was not found."""
    start = time.process_time()
    probing = probed(case)
    seconds = time.process_time() - start
    orders = ", ".join(dict.fromkeys(f"`{_cell(str(tree.order))}`" for tree in probing.trees.values()))
    equal, replayed = (sum(getattr(tree, count) for tree in probing.trees.values()) for count in ("equal", "replayed"))
    times = (f"{seconds:.1f}", f"{case.limit:.0f}", f"{probing.seconds:.1f}")
    print(
        f"| `{case.name}` | {case.dtype} | {probing.probes} | {' | '.join(times)} | {orders} | {equal} of {replayed} |"
    )
    whole = bool(probing.trees) and all(tree.order is not None for tree in probing.trees.values())
    return 0 if whole and equal == replayed > 0 and seconds < case.limit else 1


def _cell(order: str) -> str:
    """An order as it can stand in a table."""
    return (order if len(order) <= SHOWN else f"{order[:SHOWN]}...").replace("|", "\\|")


def probed(case: Case) -> Result:
    """Probe one kernel in the shapes that the command has by default."""
    kind = KINDS[case.kind]
    setup = Setup(n=N, dtype=torch_dtype(case.dtype), m=kind.m, width=kind.width)
    return probe(Function(case.name, KERNELS[case.name], kind), [setup])


if __name__ == "__main__":
    sys.exit(main())
