"""Which share of an all-reduce's outputs has other bits when another order or another accumulator adds the ranks.

    python -m benchmarks.shares [--tokens 4096] [--hidden 4096] [--ranks 2 4 8] [--seed 0]

Pairs of collectives of the registry on the same bf16 inputs: elements drawn from a Gaussian, and what a row-parallel
GEMM hands to an all-reduce: partial sums of silu(gate) * up times a weight over each rank's share of 2048 inputs, added
in fp32 by torch's own GEMM and rounded to bf16. Prints a table in Markdown; nothing is timed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from benchmarks.turns import header
from moeparity.numerics.bits import int_view
from moeparity.numerics.collectives.execute import all_reduce
from moeparity.numerics.collectives.registry import COLLECTIVES
from moeparity.numerics.order_map import Message

BF16 = torch.bfloat16
INPUTS = 2048
"""Inputs of the row-parallel GEMM, of all ranks together."""

PAIRS = (
    ("each add rounded to bf16, two orders", "nccl.ring", "nccl.tree"),
    ("each add rounded to bf16, two orders", "nccl.ring", "gloo.all_reduce"),
    ("each add rounded to bf16 or to fp32, one order", "flashinfer.one_shot", "flashinfer.one_shot_fp32"),
    ("each add rounded to bf16 or to fp32, two orders", "nccl.ring", "vllm.two_stage"),
    ("each add rounded to bf16 or to fp32, two orders", "nccl.tree", "vllm.one_stage"),
    ("fp32, rounded once, two orders", "vllm.one_stage", "vllm.two_stage"),
)


def main() -> int:
    """Count and print."""
    options = _options()
    print(header(torch.get_num_threads()))
    print(f"fraction of {options.tokens} x {options.hidden} bf16 outputs with other bits, seed {options.seed}\n")
    kinds: dict[str, Callable[[argparse.Namespace, int], list[torch.Tensor]]] = {
        "Gaussian": gaussian,
        "GEMM partials": partials,
    }
    counted = {(kind, n): shares(make(options, n)) for kind, make in kinds.items() for n in options.ranks}
    print("| what differs | collectives | " + " | ".join(f"{kind}, {n} ranks" for kind, n in counted) + " |")
    print("|---|---|" + "---:|" * len(counted))
    for i, (title, *names) in enumerate([(PAIRS[0][0], "nccl.ring, chunk 0", "nccl.tree"), *PAIRS]):
        cells = " | ".join(_percent(*of_pair[i]) for of_pair in counted.values())
        print(f"| {title} | {' / '.join(names)} | {cells} |")
    return 0


def shares(inputs: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """For the ring's chunk 0 against the tree, then for each pair: outputs that differ, and how many there are."""
    names = {name for _, *pair in PAIRS for name in pair}
    bits = {name: int_view(all_reduce(COLLECTIVES[name], inputs)[0]).flatten() for name in sorted(names)}
    message = Message(inputs[0].numel(), inputs[0].element_size(), len(inputs))
    chunks = [part for part, _ in COLLECTIVES["nccl.ring"].order_map.trees(message) if part.owner == 0]
    of_chunk = [bits["nccl.ring"][p.start : p.stop] != bits["nccl.tree"][p.start : p.stop] for p in chunks]
    differing = [torch.cat(of_chunk), *(bits[first] != bits[second] for _, first, second in PAIRS)]
    return [(int(each.sum()), each.numel()) for each in differing]


def gaussian(options: argparse.Namespace, ranks: int) -> list[torch.Tensor]:
    """Each rank's elements are independent."""
    generator = torch.Generator().manual_seed(options.seed)
    shape = (options.tokens, options.hidden)
    return [torch.randn(shape, generator=generator).to(BF16) for _ in range(ranks)]


def partials(options: argparse.Namespace, ranks: int) -> list[torch.Tensor]:
    """One activation and one weight, cut over the ranks."""
    generator = torch.Generator().manual_seed(options.seed)
    gate, up = torch.randn(2, options.tokens, INPUTS, generator=generator).unbind()
    activation = (F.silu(gate) * up).to(BF16).float()
    weight = (torch.randn(options.hidden, INPUTS, generator=generator) * INPUTS**-0.5).to(BF16).float()
    cuts = zip(activation.chunk(ranks, 1), weight.chunk(ranks, 1), strict=True)
    return [F.linear(x, w).to(BF16) for x, w in cuts]


def _percent(differing: int, outputs: int) -> str:
    """Three digits; small shares with their count, since a few outputs carry no more."""
    share = 100 * differing / outputs
    if share >= 1:
        return f"{share:.1f} %"
    return "0" if differing == 0 else f"{share:.2g} % ({differing})"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
