"""Every benchmark that can run small does, as its command; none is left out without a word.

What it finds on so little is none of this test's: 0 and 1 are both ends of a run, a traceback is none.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import ROOT

SMALL = {
    "coverage": ("--replications", "4"),
    "late": ("--threads", "1", "--layers", "2", "--repeats", "1"),
    "log_probs": ("--tokens", "16", "--vocabulary", "64"),
    "logs": ("--megabytes", "8", "--folder", "FOLDER"),
    "op_shares": ("--tokens", "128"),
    "orders": ("--rows", "8", "--hidden", "64", "--repeats", "1"),
    "planted_faults": ("--cases", "1", "--folder", "FOLDER"),
    "promoted": (),
    "retokenised": (),
    "rollout": ("--sequences", "2", "--new", "4", "--repetitions", "1"),
    "census": ("--steps", "4"),
    "doctor": ("FOLDER", "--cases", "1"),
    "shares": ("--tokens", "16", "--hidden", "64", "--ranks", "2"),
    "tensor_core": ("--inner", "64", "--columns", "16"),
    "traced": ("sdpa",),
    "weights": ("--megabytes", "1"),
}
ELSEWHERE = {
    "baseline",
    "explained",
    "first_visit",
    "gpu",
    "peers",
    "planted",
    "rl_loop",
    "spiking",
    "suite",
    "tails",
    "written_out",
    "launch_pairs",
    "public_launch",
}
"""A test of its own runs their parts."""
LONG = {
    *(
        "attribution",
        "capture",
        "collectives",
        "forward",
        "goldens",
        "layer_cost",
        "lockstep",
        "mine",
        "pages",
        "probe",
        "ranks",
    ),
    *("records", "recovered", "semantics", "streaming", "traced_patches", "workers", "schedulers"),
    *("real_engines", "served", "two_engines", "gpus_compared", "masters", "rewards"),
}
"""The smallest run of these takes 10 s or more, or needs what is not here: nothing runs them by itself."""


def _commands() -> set[str]:
    """The modules that are run as programs."""
    files = {*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "benchmarks").glob("*/__main__.py")}
    programs = [path for path in files if 'if __name__ == "__main__":' in path.read_text("utf-8")]
    return {path.parent.name if path.stem == "__main__" else path.stem for path in programs}


def test_every_benchmark_is_accounted_for() -> None:
    assert _commands() - {*SMALL, *ELSEWHERE, *LONG} == set()
    assert not {*SMALL} & {*ELSEWHERE, *LONG}


@pytest.mark.parametrize("name", SMALL)
def test_it_runs_small(name: str, tmp_path: Path) -> None:
    arguments = [str(tmp_path) if word == "FOLDER" else word for word in SMALL[name]]
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in {0, 1}, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout
