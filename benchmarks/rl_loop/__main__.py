"""Trainings by reinforcement whose sampler differs from the trainer in one way each: what that does over the updates.

    python -m benchmarks.rl_loop FOLDER [--steps 200] [--seeds 3] [--out PAGE] [--plot SVG]
    python -m benchmarks.rl_loop FOLDER --setting fp8

FOLDER keeps each training, and a second call goes on where the first one was killed, --keep steps back at most. All
settings of a seed begin with the same weights, and get the same prompts and the same noise. With --trl, and for the
page, TRL's own GRPO trains seed 0 of two of them beside; that needs `python -m tests.engines.live`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers.utils import logging

from benchmarks.rl_loop import by_trl
from benchmarks.rl_loop.page import page
from benchmarks.rl_loop.run import run
from benchmarks.rl_loop.seeds import Rows
from benchmarks.rl_loop.settings import SETTINGS


def main() -> int:
    """Train what is missing, print a line for each training, and write what is asked for."""
    options = _options()
    torch.set_num_threads(1)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    names = options.setting or list(SETTINGS)
    trainings: dict[str, list[Rows]] = {name: [] for name in names}
    for seed, name in ((seed, name) for seed in range(options.seeds) for name in names):
        result = run(SETTINGS[name], seed, options.steps, options.folder / f"{_file(name)}-{seed}", options.keep)
        trainings[name].append(result["rows"])
        print(f"{name}, seed {seed}: {result['seconds']:.0f} s, {result['digest'][:16]}", flush=True)
    if options.plot is not None:
        # matplotlib comes with the extra `plot`.
        from benchmarks.rl_loop.plot import plot  # noqa: PLC0415

        plot(trainings, options.plot)
    if options.trl or options.out is not None:
        beside = {name: _by_trl(name, options) for name in by_trl.CASES}
    if options.out is not None:
        options.out.write_text(page(trainings, beside), "utf-8")
    return 0


def _by_trl(name: str, options: argparse.Namespace) -> Rows:
    """By TRL, of seed 0."""
    rows: Rows = by_trl.run(by_trl.CASES[name], 0, options.steps, options.folder / f"trl-{_file(name)}")["rows"]
    print(f"TRL, {name}, seed 0: reward {rows[-1]['reward']:.3f} in the last step", flush=True)
    return rows


def _file(name: str) -> str:
    return name.replace(", ", "-").replace(" ", "-")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rl_loop", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--setting", action="append", choices=SETTINGS, help="only this one; may be given again")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--keep", type=int, default=20, help="steps from one state on disk to the next (20)")
    parser.add_argument("--trl", action="store_true", help="let TRL train, too")
    parser.add_argument("--out", type=Path, help="write the page, as Markdown, to this file; of all settings")
    parser.add_argument("--plot", type=Path, help="write the curves, as SVG, to this file; of all settings")
    options = parser.parse_args()
    if options.setting and (options.out is not None or options.plot is not None):
        parser.error("--out and --plot are of all settings: leave --setting away")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
