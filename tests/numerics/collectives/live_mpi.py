"""One rank of a live MPI all-reduce: FOLDER/CASE-RANK.npy in, FOLDER/CASE-RANK-out.npy out. Imports no torch."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np


def main() -> None:
    mpi = importlib.import_module("mpi4py.MPI")
    folder, cases = Path(sys.argv[1]), int(sys.argv[2])
    rank = mpi.COMM_WORLD.Get_rank()
    for case in range(cases):
        values = np.load(folder / f"{case}-{rank}.npy")
        total = np.empty_like(values)
        mpi.COMM_WORLD.Allreduce(values, total, op=mpi.SUM)
        np.save(folder / f"{case}-{rank}-out.npy", total)


if __name__ == "__main__":
    main()
