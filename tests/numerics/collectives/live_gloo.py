"""Live gloo groups on loopback: `python -m tests.numerics.collectives.live_gloo FOLDER WORLD...` forks WORLD ranks,
one group after the other.

The inputs of all ranks are made once, before the fork; every rank takes its own, and writes what it got to
FOLDER/WORLD-RANK.pt; the tests compare that with simulated ranks.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist

from tests.numerics.collectives.data import zero_sum
from tests.numerics.collectives.to_groups import WIDTH, filled, rows_of

Kind = Literal[
    "all_reduce", "average", "reduce_scatter_tensor", "reduce_scatter_list", "log_softmax", "loss_parallel", "sliced",
    "padded", "reduced",
]  # fmt: skip
TO_GROUPS: tuple[Kind, ...] = ("sliced", "padded", "reduced")
"""The rows of all groups that attend apart, of which each rank gets those of its own group: see `to_groups`."""
MIB = 1 << 20
LIMIT = timedelta(seconds=60)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Case:
    """`elements` on each rank, of `loss_parallel` on all; for a reduce-scatter a multiple of the ranks. `rows`: of each
    group that attends apart.
    """

    kind: Kind
    dtype: torch.dtype
    elements: int
    rows: tuple[int, ...] = ()

    def inputs(self, world: int) -> list[torch.Tensor]:
        return zero_sum(world, self.elements, self.dtype, seed=self.elements)

    def logits(self, world: int) -> torch.Tensor:
        """[501, V]: seven of the vocabulary on each rank; of `loss_parallel` as many as do not divide by the ranks."""
        if self.kind == "loss_parallel":
            return self.inputs(world)[0].clamp(-40, 40).view(501, -1)
        return torch.cat([x.clamp(-40, 40).view(501, -1) for x in self.inputs(world)], dim=-1)

    def rank_inputs(self, world: int) -> list[torch.Tensor]:
        """What each rank takes."""
        if self.kind == "loss_parallel":
            return [self.logits(world)] * world
        return list(self.logits(world).chunk(world, -1)) if self.kind == "log_softmax" else self.inputs(world)


def cases(world: int) -> list[Case]:
    """Sizes below, at and above the limit at which a chunk gets more than two segments: 2 * world MiB."""
    result: list[Case] = []
    for dtype in DTYPES:
        limit = 2 * world * MIB // dtype.itemsize
        large = [limit, limit + 12345] if world < 8 or dtype == torch.bfloat16 else []
        result += [Case("all_reduce", dtype, elements) for elements in (1, 7, 64, 1000, 7169, *large)]
        result += [Case("average", dtype, elements) for elements in (1, 1001)]
        blocks = [1, 13, 1001, *([limit // world + 4321] if large else [])]
        result += [Case("reduce_scatter_tensor", dtype, world * block) for block in blocks]
        blocks = [1, 13, 1001, *([limit + 321] if world < 4 and dtype == torch.bfloat16 else [])]
        result += [Case("reduce_scatter_list", dtype, world * block) for block in blocks]
    for rows in (rows_of(world, even=True), rows_of(world, even=False)):
        result += [Case(kind, dtype, sum(rows) * WIDTH, rows) for kind in TO_GROUPS for dtype in DTYPES]
    dtypes = (torch.float32, torch.bfloat16)
    result += [Case("log_softmax", dtype, 7 * 501) for dtype in dtypes]
    return [*result, *(Case("loss_parallel", dtype, 37 * 501) for dtype in dtypes)]


def run(case: Case, shard: torch.Tensor, world: int) -> torch.Tensor:
    if case.kind == "log_softmax":
        return log_softmax(shard)
    if case.kind == "loss_parallel":
        return torchs_own(shard, world)
    if case.kind in {"all_reduce", "average"}:
        dist.all_reduce(shard, op=dist.ReduceOp.AVG if case.kind == "average" else dist.ReduceOp.SUM)
        return shard
    if case.rows:
        return own_rows(case, shard.view(-1, WIDTH))
    block = shard.new_empty(case.elements // world)
    if case.kind == "reduce_scatter_tensor":
        dist.reduce_scatter_tensor(block, shard)
    else:
        dist.reduce_scatter(block, list(shard.chunk(world)))
    return block


def own_rows(case: Case, rows: torch.Tensor) -> torch.Tensor:
    """The sum of this rank's group's rows, of rows [T, H] of all groups."""
    rank = dist.get_rank()
    if case.kind == "sliced":
        dist.all_reduce(rows)
        return rows.split(case.rows)[rank]
    if case.kind == "padded":
        block = rows.new_empty(max(case.rows), WIDTH)
        dist.reduce_scatter_tensor(block, filled(rows, case.rows))
        return block[: case.rows[rank]]
    parts = [part.clone() for part in rows.split(case.rows)]
    for group, part in enumerate(parts):
        dist.reduce(part, group)
    return parts[rank]


def log_softmax(logits: torch.Tensor) -> torch.Tensor:
    """As NeMo-RL's _compute_distributed_log_softmax, on this rank's part of the vocabulary."""
    logits = logits.float()
    maximum = torch.amax(logits, dim=-1, keepdim=True)
    dist.all_reduce(maximum, op=dist.ReduceOp.MAX)
    logits = logits - maximum
    total = logits.exp().sum(-1, keepdim=True).float()
    dist.all_reduce(total)
    return logits - total.log().to(logits.dtype)


def torchs_own(logits: torch.Tensor, world: int) -> torch.Tensor:
    """torch's log-softmax of a DTensor whose vocabulary is cut, as its cross entropy takes it: this rank's part."""
    # Not above: they take as long to import as torch, and those who only ask for cases need none of them.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import loss_parallel

    shards = distribute_tensor(logits, init_device_mesh("cpu", (world,)), [Shard(1)], src_data_rank=None)
    with loss_parallel():
        log_probs = torch.log_softmax(shards, dim=-1)
    assert isinstance(log_probs, DTensor)
    return log_probs.to_local()


def digest(x: torch.Tensor) -> str:
    return hashlib.sha256(x.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def work(rank: int, world: int, folder: Path, inputs: list[list[torch.Tensor]]) -> None:
    store = f"file://{folder}/store-{world}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=LIMIT)
    digests = [digest(run(case, ranks[rank], world)) for case, ranks in zip(cases(world), inputs, strict=True)]
    torch.save(digests, folder / f"{world}-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def group(world: int, folder: Path) -> int:
    inputs = [case.rank_inputs(world) for case in cases(world)]
    return forked(world, lambda rank: work(rank, world, folder, inputs))


def main() -> int:
    # Before the fork, or every rank would: the first op on a DTensor imports torch._dynamo.
    import torch._dynamo
    import torch.distributed.tensor.parallel

    torch.set_num_threads(1)
    return max(group(int(world), Path(sys.argv[1])) for world in sys.argv[2:])


def forked(world: int, job: Callable[[int], None]) -> int:
    """The largest exit code of `world` processes that each do the job of their rank."""
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            try:
                job(rank)
            except BaseException as error:  # noqa: BLE001
                print(f"rank {rank}: {error!r}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(main())
