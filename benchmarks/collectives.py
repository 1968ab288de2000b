"""What collectives over simulated ranks cost, and sums over the hidden dimension, as multiples of a plain copy.

    python -m benchmarks.collectives [--threads 1] [--ranks 8] [--rows 4096] [--hidden 7168] [--repeats 5]

The unit is a copy of all ranks' bytes (for the hidden dimension: of the rows' bytes), made in the same run and the same
process: copy and collectives take turns, and the median of the rounds' ratios counts. An all-reduce reads what the copy
reads and writes an eighth of it. Freed memory is kept, as a pass of the engine does. `auto` says which executor a long
run ends up with. The default needs 3 GiB.
"""

from __future__ import annotations

import argparse
import sys

import torch

from benchmarks import orders
from benchmarks.turns import Work, header, in_turn
from moeparity.inputs.machine import keep_freed_memory
from moeparity.numerics import compiled
from moeparity.numerics.bits import same_bits
from moeparity.numerics.collectives.execute import all_reduce
from moeparity.numerics.collectives.registry import COLLECTIVES
from moeparity.numerics.compiled import Executor
from moeparity.numerics.dtypes import torch_dtype

NAMES = {
    "fp32": ("nccl.ring", "nccl.tree", "gloo.all_reduce", "vllm.two_stage"),
    "bf16": ("nccl.ring", "nccl.tree", "gloo.all_reduce", "vllm.two_stage", "sglang.pull_two_shot"),
}
"""By dtype; NCCL and gloo round every hop to it, vLLM and SGLang add in fp32 and round once."""


def main() -> int:
    """Measure and print."""
    options = _options()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    print(header(options.threads))
    for name in NAMES:
        ranks_table(options, name)
    for name in orders.DTYPES:
        orders.table(options.rows, options.hidden, name, options.repeats)
    return 0


def ranks_table(options: argparse.Namespace, name: str) -> None:
    """Print the all-reduces of one dtype."""
    dtype = torch_dtype(name)
    generator = torch.Generator().manual_seed(0)
    shape = (options.rows, options.hidden)
    inputs = [torch.randn(shape, generator=generator).to(dtype) for _ in range(options.ranks)]
    targets = [torch.empty_like(x) for x in inputs]

    def copy() -> None:
        for target, x in zip(targets, inputs, strict=True):
            target.copy_(x)

    works: dict[str, Work] = {"copy": copy}
    auto = {}
    for collective in NAMES[name]:
        compiled.forget()
        assert same_bits(*(_reduced(inputs, collective, executor) for executor in orders.EXECUTORS)), collective
        auto[collective] = "eager" if any(family.why_eager for family in compiled.families()) else "compiled"
    compiled.forget()
    for collective in NAMES[name]:
        works |= {f"{collective}, {e}": _reducing(inputs, collective, e) for e in orders.EXECUTORS}
    copies, best = in_turn(works, "copy", options.repeats)
    size = options.ranks * inputs[0].numel() * inputs[0].element_size()
    print(f"\n{options.ranks} ranks x {name} {list(shape)}, median of {options.repeats} rounds")
    print(f"copy {size / best / 1e9:.1f} GB/s each way at best\n")
    print(f"| {'copies':20} | adds rounded to | eager | compiled | auto     |")
    print(f"|{'-' * 22}|-----------------|------:|---------:|----------|")
    for collective in NAMES[name]:
        eager, quick = (copies[f"{collective}, {executor}"] for executor in orders.EXECUTORS)
        to = name if COLLECTIVES[collective].order_map.accumulate == "io" else "fp32"
        print(f"| {collective:20} | {to:15} | {eager:5.2f} | {quick:8.2f} | {auto[collective]:8} |")


def _reduced(inputs: list[torch.Tensor], name: str, executor: Executor) -> torch.Tensor:
    return all_reduce(COLLECTIVES[name], inputs, executor=executor)[0]


def _reducing(inputs: list[torch.Tensor], name: str, executor: Executor) -> Work:
    return lambda: _reduced(inputs, name, executor)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
