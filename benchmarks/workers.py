"""What workers give: seconds of a command with one worker over those with two, for shards of prompts and for a sweep.

    python -m benchmarks.workers [--pairs 5] [--ray] [--sequences 64]

A bisection of `checkpoints/quickstart` in shards, and a sweep of eight points, one torch thread a worker, in turn with
one worker and with two: the median of the ratios of both, and their range. Workers stay between the runs, as they do
between the passes of a command; how long the first takes to begin is told beside. The digests of all reports are held
to that of a run without workers. Exits with 1 where a digest is another, or a ratio below 1.7: that
takes two idle cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.turns import header
from moeparity.bisection.options import Options
from moeparity.bisection.pipeline import bisected, ready, workforce_of
from moeparity.bisection.sweep.points import Points
from moeparity.bisection.workers.crew import Crew
from moeparity.bisection.workers.request import Wanted, crew_of
from moeparity.plan.spec.overrides import axes

LEAST = 1.7
CHECKPOINT = Path(__file__).parents[1] / "checkpoints" / "quickstart"
OVER = ("profile=hf-default,sglang", "layers[0].moe.gate:output=fp32,bf16", "layers[1].moe.gate:output=fp32,bf16")


def main() -> int:
    """Print both ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--ray", action="store_true", help="workers of a local ray cluster")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(header(1))
    with tempfile.TemporaryDirectory() as folder:
        recipe = write_recipe(Path(folder), args.sequences)
        good = [measure("shards", shards(recipe), args), measure("sweep", points(recipe), args)]
    return 0 if all(good) else 1


def write_recipe(folder: Path, sequences: int) -> Path:
    """A recipe of random prompts, in waves of eight."""
    ids = torch.randint(0, 256, (sequences, 64), generator=torch.Generator().manual_seed(7))
    save_file({"input_ids": ids}, folder / "tokens.safetensors")
    path = folder / "recipe.yaml"
    path.write_text(
        f"kind: recipe\ncheckpoint: {CHECKPOINT}\ntokens: {{file: tokens.safetensors, sampled_from: candidate}}\n"
        "reference: {profile: hf-eager, micro_batch: 8}\ncandidate: {profile: hf-default, micro_batch: 8}\n"
        "gate: {metric: k3, below: 1e-4}\n"
    )
    return path


Result = Callable[[Crew | None], str]
"""The digests of a run with some workers."""


def shards(recipe: Path) -> Result:
    """A bisection whose first pass is cut into shards."""
    options = Options()

    def run(crew: Crew | None) -> str:
        study = ready(recipe, device="cpu", options=options)
        return digest(bisected(study, workforce=workforce_of(study, options, crew)).to_json())

    return run


def points(recipe: Path) -> Result:
    """A sweep of eight points."""
    combinations = list(product(*axes(OVER)))

    def run(crew: Crew | None) -> str:
        sweep: dict[str, Any] = {"recipe": recipe, "combinations": combinations, "device": "cpu", "allow_code": False}
        points_run = Points(**sweep, memory_limit=None, folder=None).run(crew, None)
        assert all(point.report is not None for point in points_run), [point.error for point in points_run]
        return " ".join(digest(point.report.to_json()) for point in points_run if point.report is not None)

    return run


def digest(text: str) -> str:
    """The stable digest of a report."""
    return str(json.loads(text)["digest"])


def measure(name: str, run: Result, args: argparse.Namespace) -> bool:
    """One worker and two, in turn; True where results are those of a local run, and two are fast enough."""
    expected = run(None)
    wanted = None if args.ray else 2
    with crew_of(Wanted(count=wanted), "cpu") as crew:
        assert crew is not None
        begun = time.perf_counter()
        same = run(crew) == expected
        first, ratios, spent = time.perf_counter() - begun, [], []
        for pair in range(args.pairs):
            times = {}
            for count in (1, 2) if pair % 2 else (2, 1):
                crew.count = count
                before = time.perf_counter()
                same &= run(crew) == expected
                times[count] = time.perf_counter() - before
            ratios.append(times[1] / times[2])
            spent.append(times[1])
    ratio, cores = statistics.median(ratios), len(os.sched_getaffinity(0))
    kind = "ray" if args.ray else "processes"
    print(
        f"{name}, {kind}: one worker / two {ratio:.2f} (median of {len(ratios)}, {min(ratios):.2f} to "
        f"{max(ratios):.2f}); one takes {statistics.median(spent):.1f} s, the first run, which begins both, "
        f"{first:.1f} s; load average {os.getloadavg()[0]:.1f} on {cores} cores; digests "
        f"{'equal' if same else 'NOT EQUAL'}"
    )
    return same and ratio >= LEAST


if __name__ == "__main__":
    raise SystemExit(main())
