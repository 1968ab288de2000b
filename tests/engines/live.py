"""Kernels of other projects that run on CPU, each version in a folder of its own and each run in a process of its own.

`python -m tests.engines.live` installs them below the environment's prefix, without their dependencies: some 700 MB,
nearly all of it Triton, and nothing else in the environment changes. Tests that need them are marked `live` and say so
where they are not there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
FOLDER = Path(sys.prefix) / "live"
_CONFIGURATION = ("tyro==1.0.17", "docstring-parser==0.18.0", "typeguard==4.6.0")
PACKAGES: dict[str, tuple[str, ...]] = {
    "triton": ("triton==3.7.1",),
    "triton-3.8": ("triton==3.8.0",),
    "ml_dtypes": ("ml_dtypes==0.6.0",),
    "sglang": ("sglang==0.5.23",),
    "transformer-engine": ("transformer-engine==2.20.2",),
    "torchtitan-0.3.0": ("torchtitan==0.3.0", "spmd_types==0.2.3", *_CONFIGURATION),
    "torchtitan-0.2.2": ("torchtitan==0.2.2", *_CONFIGURATION),
    "liger": ("liger-kernel==0.8.5",),
}
"""What lies in each folder: two versions of one project cannot share one."""

Cases = Mapping[str, Mapping[str, Any]]
Found = dict[str, dict[str, torch.Tensor]]


def install() -> None:
    for name, packages in PACKAGES.items():
        if not (FOLDER / name).is_dir():
            where = ["--target", str(FOLDER / name)]
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", *where, *packages]
            subprocess.run(command, check=True)


def ask(program: str, folders: tuple[str, ...], cases: Cases) -> Found:
    """What tests/engines/`program`.py makes of the cases, with those folders in front of the environment's packages.

    Skips the test that asks, with what to do, where a folder is missing.
    """
    absent = [name for name in folders if not (FOLDER / name).is_dir()]
    if absent:
        pytest.skip(f"not compared with live kernels: no {', '.join(absent)} (python -m tests.engines.live)")
    path = os.pathsep.join(str(FOLDER / name) for name in folders)
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder) / "cases.pt", Path(folder) / "found.pt"
        torch.save({name: dict(case) for name, case in cases.items()}, given)
        command = [sys.executable, "-W", "ignore", "-m", f"tests.engines.{program}", str(given), str(made)]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        found: Found = torch.load(made)
    return found


def answer(kinds: Mapping[str, Any]) -> None:
    """The main program of such a process: every case goes to the function of its `kind`."""
    torch.set_num_threads(1)
    given, made = sys.argv[1:]
    found: Found = {}
    with torch.no_grad():
        for name, case in torch.load(given).items():
            found[name] = kinds[case.pop("kind")](**case)
    torch.save({name: {key: x.contiguous() for key, x in out.items()} for name, out in found.items()}, made)


if __name__ == "__main__":
    install()
