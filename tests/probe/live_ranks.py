"""Live gloo groups on loopback: `python -m tests.probe.live_ranks FOLDER` forks the ranks of each, which probe it.

Rank 0 writes what they found to FOLDER/WORLD.json.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from moeparity.numerics.dtypes import torch_dtype
from moeparity.probe.calls import Setup
from moeparity.probe.certify import Claim, certify
from moeparity.probe.find import probe
from moeparity.probe.target import KINDS, Function
from tests.numerics.collectives.live_gloo import forked
from tests.probe import kernels

CASES = {3: ("fp32", 64), 4: ("bf16", 501)}
"""By number of ranks, dtype and elements of the message."""


def results(world: int, dtype: str, elements: int) -> dict[str, Any]:
    function = Function("all_reduce", kernels.all_reduce, KINDS["all_reduce"])
    setup = Setup(n=world, dtype=torch_dtype(dtype), m=1, width=elements)
    result = probe(function, [setup])
    ((_, places, reason),) = result.places
    verdicts = {
        name: [verdict.holds for verdict in certify(function, [setup], Claim(text=name, collective=name))]
        for name in ("gloo.all_reduce", "nccl.ring")
    }
    return {
        "collectives": result.collectives,
        "parts": [[place.positions[0], place.positions[-1] + 1, len(place.positions)] for place in places],
        "replayed": [tree.equal == tree.replayed for tree in result.trees.values()],
        "held": verdicts,
        "why": reason,
    }


def work(rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store{world}", rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    outcome = results(world, *CASES[world])
    if rank == 0:
        (folder / f"{world}.json").write_text(json.dumps(outcome))
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    folder = Path(sys.argv[1])
    return max(forked(world, partial(_work, world, folder)) for world in CASES)


def _work(world: int, folder: Path, rank: int) -> None:
    work(rank, world, folder)


if __name__ == "__main__":
    sys.exit(main())
