"""One rank of live MPI all-reduces, of the first 3, 4 ... ranks of the job: FOLDER/WORLD-CASE-RANK.npy in,
FOLDER/WORLD-CASE-RANK-out.npy out. Imports no torch.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np


def main() -> None:
    mpi = importlib.import_module("mpi4py.MPI")
    folder, cases, worlds = Path(sys.argv[1]), int(sys.argv[2]), map(int, sys.argv[3:])
    rank = mpi.COMM_WORLD.Get_rank()
    for world in worlds:
        group = mpi.COMM_WORLD.Split(0 if rank < world else mpi.UNDEFINED, rank)
        for case in range(cases if rank < world else 0):
            part_here = np.load(folder / f"{world}-{case}-{rank}.npy")
            total = np.empty_like(part_here)
            group.Allreduce(part_here, total, op=mpi.SUM)
            np.save(folder / f"{world}-{case}-{rank}-out.npy", total)


if __name__ == "__main__":
    main()
