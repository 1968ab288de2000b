"""Simulated ranks against a live Open MPI, bit for bit; where it is not installed the test says what is missing.

On Debian: `apt-get install openmpi-bin libopenmpi-dev`, then `pip install mpi4py`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from moeparity.numerics.bits import same_bits
from moeparity.numerics.collectives import mpi
from moeparity.numerics.collectives.execute import all_reduce
from moeparity.numerics.collectives.registry import find
from moeparity.numerics.order_map import Message
from tests.evidence import record
from tests.numerics.collectives.data import zero_sum

ROOT = Path(__file__).parents[3]
ELEMENTS = (1, 2, 7, 64, 1001, 458753)
ALGORITHMS = {"recursive doubling": (3, mpi.RECURSIVE_DOUBLING.name), "ring": (4, mpi.RING_TABLE.name)}


def absence() -> str:
    """What is not installed, in words; empty where all is."""
    absent = [] if importlib.util.find_spec("mpi4py") else ["mpi4py (pip install mpi4py)"]
    if shutil.which("mpirun") is None:
        return " and ".join(["mpirun (apt-get install openmpi-bin libopenmpi-dev)", *absent])
    return " and ".join([*([] if "Open MPI" in version() else ["Open MPI (mpirun is another MPI's)"]), *absent])


def version() -> str:
    """`Open MPI 4.1.4`, or another library's name and version."""
    output = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=True).stdout
    return output.splitlines()[0].removeprefix("mpirun ").replace("(Open MPI)", "Open MPI")


@pytest.mark.mpi
@pytest.mark.parametrize("world", [3, 4, 5, 8])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_live_open_mpi_equals_simulated_ranks(algorithm: str, world: int, tmp_path: Path) -> None:
    if absent := absence():
        pytest.skip(f"Open MPI is not compared with simulated ranks here: no {absent}")
    number, name = ALGORITHMS[algorithm]
    inputs = [zero_sum(world, elements, torch.float32) for elements in ELEMENTS]
    for case, tensors in enumerate(inputs):
        for rank, tensor in enumerate(tensors):
            np.save(tmp_path / f"{case}-{rank}.npy", tensor.numpy())
    run(world, number, tmp_path)
    for case, tensors in enumerate(inputs):
        expected = all_reduce(find(name, Message(tensors[0].numel(), 4, world)), tensors)
        for rank in range(world):
            result = torch.from_numpy(np.load(tmp_path / f"{case}-{rank}-out.npy"))
            assert same_bits(result, expected[rank]), (ELEMENTS[case], rank)
        choice = find(name, Message(tensors[0].numel(), 4, world)).name
        for collective in {name, choice}:
            record("all_reduce", {"reduce": "now", "collective": collective}, f"{version()} processes")


def run(world: int, algorithm: int, folder: Path) -> None:
    options = ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", str(algorithm)]
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(world), *options]
    command += [sys.executable, "-m", "tests.numerics.collectives.live_mpi", str(folder), str(len(ELEMENTS))]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert process.returncode == 0, process.stderr
