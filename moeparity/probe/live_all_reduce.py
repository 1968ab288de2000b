"""An all-reduce in live processes as sums over ranks: every rank runs this, and all see what rank 0 sees.

n: processes, the leaves of each sum. E: elements of the message, each of which is a sum.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

from moeparity.errors import MoeparityError
from moeparity.numerics.bits import same_bits
from moeparity.numerics.collectives.execute import all_reduce
from moeparity.numerics.collectives.registry import COLLECTIVES
from moeparity.numerics.dtypes import name_of
from moeparity.numerics.order_map import Message
from moeparity.numerics.orders import Order, tree
from moeparity.probe.calls import Calls, Setup, parts, runs
from moeparity.probe.replay import zero_sum
from moeparity.probe.reveal import NoTree
from moeparity.probe.shape import clusters, shape_of
from moeparity.probe.target import Function

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def start(action: str, command: str, *, on_gpu: bool = False) -> None:
    """Join the processes that torchrun started, by NCCL with a GPU for each process, else by gloo.

    Raises MoeparityError if torchrun did not start this process; the message says that `action` needs it, with
    `command`.
    """
    missing = [name for name in VARIABLES if name not in os.environ]
    if missing:
        raise MoeparityError(
            f"{action} needs its processes, and {missing[0]} is not set: start them with `torchrun --nproc-per-node 4 "
            f"-m moeparity.cli {command}`."
        )
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if on_gpu else "gloo")


def join(n: int | None, *, on_gpu: bool = False) -> int:
    """Join the job, unless the function's module has done so; returns the number of processes. Raises MoeparityError,
    also if that is not `n`.
    """
    if not dist.is_initialized():
        start("an all-reduce", "probe ...", on_gpu=on_gpu)
    world = dist.get_world_size()
    if n is not None and n != world:
        raise MoeparityError(f"--n {n}: there are {world} processes, and each adds one value. Leave --n out.")
    return world


def first_rank() -> bool:
    """Whether this process is the one of its job that prints."""
    return int(os.environ.get("RANK", "0")) == 0


@contextmanager
def process_groups() -> Iterator[None]:
    """Leave all process groups, also the function's own, when the context ends.

    A gloo thread that still lives while the interpreter shuts down wants its lock, and aborts the process.
    """
    try:
        yield
        if dist.is_initialized():
            # A process that closed its connections before the others would look as if it had died.
            dist.barrier()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


class Ranks(Calls):
    """f(x [E]) -> [E], or in place, in each of n processes."""

    def __init__(self, function: Function, setup: Setup) -> None:
        super().__init__(function, setup)
        self.rank = dist.get_rank()
        self.group = dist.new_group(backend="gloo")

    @property
    def positions(self) -> int:
        """One per element."""
        return self.setup.width

    def _reduce(self, x: torch.Tensor) -> torch.Tensor:
        """What all ranks hold after the call. Raises NoTree if they do not hold the same."""
        out = self._call(x, shape=(self.setup.width,)).contiguous()
        raw = out.view(torch.uint8)
        results = [torch.empty_like(raw) for _ in range(self.setup.n)]
        dist.all_gather(results, raw, group=self.group)
        deviants = [rank for rank, result in enumerate(results) if not torch.equal(result, results[0])]
        if deviants:
            raise NoTree(f"rank {deviants[0]} holds another sum than rank 0")
        return out

    def sums(self, rows: torch.Tensor, at: Sequence[int], factors: torch.Tensor | None = None) -> torch.Tensor:  # noqa: ARG002
        """As `Sums.sums`: each rank contributes its column of `rows`."""
        outputs = []
        for batch in parts(rows, len(at)):
            indices = torch.tensor(at[: len(batch)])
            x = torch.zeros(self.setup.width, dtype=self.setup.dtype)
            x[indices] = batch[:, self.rank]
            outputs.append(self._reduce(x)[indices])
        return torch.cat(outputs)

    def everywhere(self, row: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """As `Sums.everywhere`."""
        return self._reduce(row[self.rank].expand(self.setup.width))

    def label(self, positions: Sequence[int]) -> str:
        """The elements in words."""
        return f"elements {runs(positions)}"


def simulated_equals(ranks: Ranks, name: str) -> tuple[int, int]:
    """How many elements of zero-sum messages equal those of the collective `name` over simulated ranks; and of how
    many.

    Raises ValueError if the library would not take the message.
    """
    equal = total = 0
    for seed in range(3):
        rows, _ = zero_sum(ranks.setup.n, ranks.setup.width, ranks.setup.dtype, seed=seed)
        sums = ranks.sums(rows, range(ranks.setup.width))
        expected = all_reduce(COLLECTIVES[name], [row.contiguous() for row in rows.t()], executor="eager")[0]
        total += len(sums)
        if same_bits(sums, expected):
            equal += len(sums)
        elif sums.dtype == expected.dtype:
            equal += sum(same_bits(a, b) for a, b in zip(parts(sums, 1), parts(expected, 1), strict=True))
    return equal, total


def collectives_like(
    orders: dict[int, frozenset[int]], accumulate: str, setup: Setup, *, scatters: bool = False
) -> list[str]:
    """Shipped collectives that add the ranks of every element in the order found. scatters: look among reduce-scatters.

    orders: element -> the sets of ranks that are added up before others (`shape.clusters`). Two ranks have only one
    order, so all collectives that take the message agree.
    """
    names = []
    for name, collective in COLLECTIVES.items():
        order_map = collective.order_map
        dtype = name_of(setup.dtype) or ""
        if collective.scatters != scatters or order_map.output != "io":
            continue
        if setup.n > 2 and accumulate != (dtype if order_map.accumulate == "io" else "fp32"):
            continue
        try:
            message = Message(setup.width, setup.dtype.itemsize, setup.n)
            collective.check(message, dtype)
            trees = order_map.trees(message)
        except ValueError:
            continue
        expected = [(part, frozenset(clusters(shape_of(ranks, setup.n)))) for part, ranks in trees]
        if all(orders[place] == sets for part, sets in expected for place in range(part.start, part.stop)):
            names.append(name)
    return names


def sets_of(order: Order, n: int) -> frozenset[int]:
    """The sets of ranks that an order over n ranks adds up before others."""
    return frozenset(clusters(shape_of(tree(order, n), n)))
