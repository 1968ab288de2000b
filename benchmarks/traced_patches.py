"""Monkey-patched programs captured and held to `hf-eager`: are the changed nodes named, and no others.

    python -m benchmarks.traced_patches [--seeds N]

Every patch of tests/evidence/patches.py (faults, choices, combinations of both) with N seeds, each of which draws its
layers and sizes and the tokens anew, on a small random Qwen3-MoE. Prints a row for each patch and the sums.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
from pathlib import Path
from random import Random

import torch

from tests.checkpoint_factory import make_small
from tests.evidence.patches import PATCHES
from tests.evidence.traced import reported, tokens


def main() -> None:
    """All patches, seed after seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {seeds} seeds")
    print(f"{'patch':28} {'runs':>4} {'all named':>9} {'innocent':>8}")
    sums = [0, 0, 0]
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = make_small("qwen3_moe", Path(folder) / "checkpoint")
        for name in PATCHES:
            outcomes = [_outcome(name, seed, checkpoint, Path(folder)) for seed in range(seeds)]
            row = [seeds, sum(is_named for is_named, _ in outcomes), sum(innocent for _, innocent in outcomes)]
            sums = [total + part for total, part in zip(sums, row, strict=True)]
            print(f"{name:28} {row[0]:4} {row[1]:9} {row[2]:8}", flush=True)
    print(f"{'together':28} {sums[0]:4} {sums[1]:9} {sums[2]:8}")


def _outcome(name: str, seed: int, checkpoint: Path, folder: Path) -> tuple[bool, int]:
    """Whether every changed node is named, and how many others are."""
    changed: set[str] = set()
    draw = Random(f"{seed} {name}")  # noqa: S311
    patch_folder = folder / f"{name}-{seed}"
    patch_folder.mkdir()
    report = reported(
        patch_folder,
        checkpoint,
        ids=tokens((2, 7), seed=seed),
        patch=lambda program: changed.update(PATCHES[name](program, draw)),
        further={"grafts": False},
    )
    roots = {root.node for root in report.roots}
    return changed <= roots, len(roots - changed)


if __name__ == "__main__":
    main()
