"""One variant's forward pass against transformers' own, on a model as wide as Qwen3-30B-A3B.

    python -m benchmarks.forward [--threads 2] [--repetitions 9]

Needs 10 GB of memory and 2.5 GB of disk. Loading is timed apart; both sides then hold their weights in memory. Exits
with 1 where ours takes more than 1.1 times as long.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
import transformers

from benchmarks.turns import header
from moeparity.engine.forward import forward
from moeparity.inputs.model import Model, open_model
from moeparity.numerics.bits import same_bits
from tests.checkpoint_factory import WIDE_VOCAB, make_wide
from tests.hf.reference import ARGUMENTS, load, placed

LAYERS, EXPERTS, SEQUENCES, TOKENS = 2, 128, 4, 128
BOUND = 1.1
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Seconds of one profile: loading, then the median forward, on both sides; `same` says whether bits are equal."""

    profile: str
    load_ours: float
    load_theirs: float
    ours: float
    theirs: float
    same: bool

    @property
    def ratio(self) -> float:
        """Ours over theirs."""
        return self.ours / self.theirs


def main() -> int:
    """Print the table; 1 when a ratio is above the bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = make_wide(Path(folder), LAYERS, EXPERTS)
        rows = [measure(checkpoint, profile, arguments.repetitions) for profile in ARGUMENTS]
    for row in rows:
        if not row.same:
            raise SystemExit(f"{row.profile}: the two sides give different bits; their times say nothing.")
    print(f"{header(arguments.threads)}, transformers {transformers.__version__}")
    print(
        f"{LAYERS} layers of {EXPERTS} experts, {SEQUENCES} x {TOKENS} tokens, bf16, median of {arguments.repetitions}"
    )
    print(f"{'profile':<12}{'load ours':>11}{'theirs':>9}{'forward ours':>15}{'theirs':>9}{'ratio':>8}")
    for row in rows:
        times = f"{row.load_ours:>9.2f} s{row.load_theirs:>7.2f} s{row.ours:>13.3f} s{row.theirs:>7.3f} s"
        print(f"{row.profile:<12}{times}{row.ratio:>8.3f}")
    return int(any(row.ratio > BOUND for row in rows))


def measure(checkpoint: Path, profile: str, repetitions: int, device: str = "cpu") -> Row:
    """Both sides on the same tokens, in alternating order, after one pass that compares bits.

    On either side a forward ends with its logits on the CPU.
    """
    ids = torch.randint(0, WIDE_VOCAB, (SEQUENCES, TOKENS), generator=torch.Generator().manual_seed(0))
    load.cache_clear()
    theirs, load_theirs = timed(partial(placed, checkpoint, profile, torch.bfloat16, device))
    ours, load_ours = timed(partial(opened, checkpoint, device))

    def run_ours() -> torch.Tensor:
        return forward(ours, ids, profile=profile)["logits"]

    def run_theirs() -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = theirs(ids.to(device), use_cache=False).logits.cpu()
        return logits

    same = same_bits(run_ours(), run_theirs())
    for _ in range(2):  # until the allocator has seen what both sides ask for
        run_ours(), run_theirs()
    sides: dict[Callable[[], torch.Tensor], list[float]] = {run_ours: [], run_theirs: []}
    for repetition in range(repetitions):
        for side in list(sides)[:: 1 if repetition % 2 else -1]:
            sides[side].append(timed(side)[1])
    medians = [statistics.median(times) for times in sides.values()]
    ours_median, theirs_median = medians
    return Row(
        profile=profile,
        load_ours=load_ours,
        load_theirs=load_theirs,
        ours=ours_median,
        theirs=theirs_median,
        same=same,
    )


def opened(checkpoint: Path, device: str) -> Model:
    """Our model, checked, with all its weights in the device's memory."""
    model = open_model(checkpoint, device=device, residency="resident")
    for segment in model.graph.segments:
        model.weights.load(segment, (model.dtype,))
    return model


def timed(function: Callable[[], T]) -> tuple[T, float]:
    """A call's result and its seconds."""
    start = time.perf_counter()
    result = function()
    return result, time.perf_counter() - start


if __name__ == "__main__":
    raise SystemExit(main())
