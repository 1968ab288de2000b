"""Simulated ranks against a live Open MPI, bit for bit; where it is not installed the test says what is missing.

On Debian: `apt-get install openmpi-bin libopenmpi-dev`, then `pip install mpi4py`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from moeparity.numerics.bits import same_bits
from moeparity.numerics.collectives import mpi
from moeparity.numerics.collectives.execute import all_reduce
from moeparity.numerics.collectives.registry import find
from moeparity.numerics.order_map import Message
from tests.numerics.collectives.data import zero_sum
from tests.verified import record

ROOT = Path(__file__).parents[3]
ELEMENTS = (1, 2, 7, 64, 1001, 458753)
WORLDS = (3, 4, 5, 8)
ALGORITHMS = {"recursive doubling": (3, mpi.RECURSIVE_DOUBLING.name), "ring": (4, mpi.RING_TABLE.name)}


def absence() -> str:
    """What is not installed, in words; empty where all is."""
    absent = [] if importlib.util.find_spec("mpi4py") else ["mpi4py (pip install mpi4py)"]
    if shutil.which("mpirun") is None:
        return " and ".join(["mpirun (apt-get install openmpi-bin libopenmpi-dev)", *absent])
    return " and ".join([*([] if "Open MPI" in version() else ["Open MPI (mpirun is another MPI's)"]), *absent])


@cache
def version() -> str:
    """`Open MPI 4.1.4`, or another library's name and version."""
    output = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=True).stdout
    return output.splitlines()[0].removeprefix("mpirun ").replace("(Open MPI)", "Open MPI")


def inputs(world: int) -> list[list[torch.Tensor]]:
    """Of each case what each rank has."""
    return [zero_sum(world, elements, torch.float32) for elements in ELEMENTS]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder with what each rank of each world got from an algorithm; one job for each, its worlds one by one."""

    @cache
    def folder(algorithm: str) -> Path:
        if absent := absence():
            pytest.skip(f"Open MPI is not compared with simulated ranks here: no {absent}")
        rank_folder = tmp_path_factory.mktemp("live")
        for world in WORLDS:
            for case, tensors in enumerate(inputs(world)):
                for rank, tensor in enumerate(tensors):
                    np.save(rank_folder / f"{world}-{case}-{rank}.npy", tensor.numpy())
        run(ALGORITHMS[algorithm][0], rank_folder)
        return rank_folder

    return folder


@pytest.mark.mpi
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_live_open_mpi_equals_simulated_ranks(algorithm: str, world: int, live: Callable[[str], Path]) -> None:
    folder, (_, name) = live(algorithm), ALGORITHMS[algorithm]
    for case, tensors in enumerate(inputs(world)):
        message = Message(tensors[0].numel(), 4, world)
        expected = all_reduce(find(name, message), tensors)
        for rank in range(world):
            got = torch.from_numpy(np.load(folder / f"{world}-{case}-{rank}-out.npy"))
            assert same_bits(got, expected[rank]), (ELEMENTS[case], rank)
        for used in {name, find(name, message).name}:
            record("all_reduce", {"reduce": "now", "collective": used}, f"{version()} processes")


def run(algorithm: int, folder: Path) -> None:
    chosen = ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", str(algorithm)]
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(max(WORLDS)), *chosen]
    program = [sys.executable, "-m", "tests.numerics.collectives.live_mpi"]
    command += [*program, str(folder), str(len(ELEMENTS)), *map(str, WORLDS)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
