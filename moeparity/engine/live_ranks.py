"""Real ranks: this process computes the pieces of its own rank in a torch.distributed job; the job's backend gathers
and reduces them.

Every process walks the same graph. At an op that is cut it computes its own piece and is sent what the other ranks
computed. A sum over ranks is the backend's own; it is compared with the simulated sum of the same partial sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from moeparity.errors import RankError
from moeparity.numerics.bits import int_view, same_bits
from moeparity.numerics.collectives import of_job
from moeparity.numerics.collectives.execute import all_reduce, reduce_scatter
from moeparity.numerics.collectives.registry import COLLECTIVES
from moeparity.numerics.dtypes import name_of
from moeparity.numerics.rounding import rounded
from moeparity.ops.kernels.pieces import Compute, Ranks, Reduce
from moeparity.ops.kernels.placement import by_destination


@dataclass(frozen=True, slots=True)
class Reduction:
    """One sum over ranks by the backend: what a rank sent, and how many elements differ in bits from the simulated sum.

    call: `all_reduce` or `reduce_scatter_tensor`; `all_gather` if the ranks' pieces were sent and each rank added them.
    orders: the shipped collectives that give all its bits. Not looked for if the sum is as simulated.
    """

    call: str
    ranks: int
    elements: int
    dtype: str
    differing: int
    orders: frozenset[str] = frozenset()


class LiveRanks(Ranks):
    """The ranks of the job that this process is one of; there are `width` of them. Pieces are dealt out to ranks in
    turn.

    If an op has fewer pieces than there are ranks, groups of consecutive ranks compute it, all of them the same. If it
    has more, each rank has several. Each stage of a pipeline has the same number of consecutive ranks; `stages` says
    which stage computes each node. Making one is a collective call: all ranks of the job have to do it.
    """

    def __init__(self, stages: Mapping[str, int] | None = None) -> None:
        self._stages = stages or {}
        self.rank, self.width = dist.get_rank(), dist.get_world_size()
        self.backend = str(dist.get_backend())
        self.device = (
            torch.device("cuda", torch.cuda.current_device()) if self.backend == "nccl" else torch.device("cpu")
        )
        self._groups: Mapping[int, dist.ProcessGroup] = {
            size: dist.new_subgroups(group_size=size)[0]  # type: ignore[no-untyped-call]
            for size in range(2, self.width)
            if not self.width % size
        }
        self._reductions: list[Reduction] = []

    def take(self) -> tuple[Reduction, ...]:
        """The sums that were made since the last time this was asked."""
        reductions, self._reductions = tuple(self._reductions), []
        return reductions

    def holds(self, piece: int, pieces: int) -> bool:
        """Whether this rank computes this one of `pieces` pieces. Raises RankError where they can't be dealt out."""
        if pieces % self.width and self.width % pieces:
            raise RankError(f"{pieces} pieces of an op can't be dealt out to {self.width} ranks.")
        if pieces < self.width:
            return self.rank % pieces == piece
        return piece * self.width // pieces == self.rank % self.width

    def gathered(self, outputs: Sequence[torch.Tensor | None], pieces: int) -> list[torch.Tensor]:
        """The outputs of all pieces, each sent by the rank that computed it."""
        size = min(pieces, self.width)
        if size == 1:
            return super().gathered(outputs, pieces)
        own_outputs = [output for output in outputs if output is not None]
        parts: list[list[torch.Tensor]] = [[]] * size
        # Through the CPU: an unpickled tensor goes to the device that it had on its sender.
        dist.all_gather_object(parts, [output.cpu() for output in own_outputs], group=self._group(size))
        return [part.to(self.device) for of_rank in parts for part in of_rank]

    def reduced(self, partials: Sequence[torch.Tensor], simulated: Reduce, *, scattered: bool) -> torch.Tensor:
        """The backend's sum of the ranks' partial sums, in their dtype; it is compared with the simulated one."""
        pieces = len(partials)
        size = min(pieces, self.width)
        own_partials = [partial if self.holds(i, pieces) else None for i, partial in enumerate(partials)]
        every = self.gathered(own_partials, pieces)
        expected = simulated(every)
        first, name = every[0], name_of(every[0].dtype) or str(every[0].dtype)
        if pieces > size:
            # No library's all-reduce adds several pieces of one rank, so each rank is sent all of them.
            self._reductions.append(Reduction("all_gather", size, first.numel() * (pieces // size), name, 0))
            return expected
        total = self._sum(next(partial for partial in own_partials if partial is not None), size, scattered=scattered)
        differing = int((int_view(rounded(total, expected.dtype)) != int_view(expected)).sum())
        orders = _orders(every, total, scattered=scattered) if differing else frozenset()
        call = "reduce_scatter_tensor" if scattered else "all_reduce"
        self._reductions.append(Reduction(call, size, first.numel(), name, differing, orders))
        return total

    def in_groups(
        self, groups: Sequence[tuple[int, int]], compute: Compute, *, whole: bool
    ) -> tuple[torch.Tensor, ...]:
        """What `compute` gives in the last of these groups of ranks, each a part of the one before, which acts as a job
        of its own meanwhile. The result is sent to all other ranks of the job.
        """
        if not groups:
            return compute()
        (number, count), *inner_groups = groups
        if count == 1:
            return self.in_groups(inner_groups, compute, whole=whole)
        every, ranks = self.width, self.width // count
        is_mine = self.rank % every // ranks == number
        outputs: tuple[torch.Tensor, ...] = ()
        if is_mine:
            self.width = ranks
            try:
                outputs = self.in_groups(inner_groups, compute, whole=whole)
            finally:
                self.width = every
        sent: list[tuple[torch.Tensor, ...]] = [tuple(output.cpu() for output in outputs)]
        source = self.rank - self.rank % every + number * ranks
        dist.broadcast_object_list(sent, src=source, group=self._group(every))
        if is_mine:
            return outputs
        received = tuple(output.to(self.device) for output in sent[0])
        # Partial sums stay where they are: those of another group stand for something that nothing here may read.
        return received if whole else tuple(torch.full_like(x, torch.nan) for x in received)

    def stage(self, node: str) -> tuple[int, int]:
        """Which of how many stages computes a node."""
        return self._stages.get(node, 0), max(self._stages.values(), default=0) + 1

    def handed_on(self, stage: int, values: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Each rank of the stage sends the values to its counterpart in the next stage, which goes on with what it
        received. On all other ranks they stay as they are.
        """
        ranks = self.width // self.stage("")[1]
        stage_here, received = self.rank // ranks, list(values)
        for place, value in enumerate(values):
            if value is not None and stage_here == stage:
                dist.send(value.contiguous(), self.rank + ranks)
            elif value is not None and stage_here == stage + 1:
                buffer = torch.empty_like(value, memory_format=torch.contiguous_format)
                dist.recv(buffer, self.rank - ranks)
                received[place] = torch.empty_like(value).copy_(buffer)
        return received

    def _sum(self, partial: torch.Tensor, size: int, *, scattered: bool) -> torch.Tensor:
        """The backend's sum of x [B, T, H]: of all of it, or scattered by tokens and put together again."""
        if not scattered:
            return of_job.all_reduce(partial, self._group(size))
        shares = of_job.reduce_scatter(by_destination(partial, size), self._group(size))
        return torch.cat(shares, dim=1)[:, : partial.shape[1]].contiguous()

    def _group(self, size: int) -> dist.ProcessGroup | None:
        """The group of `size` consecutive ranks that this rank is in; None: all ranks."""
        return self._groups.get(size)


def _orders(partials: Sequence[torch.Tensor], total: torch.Tensor, *, scattered: bool) -> frozenset[str]:
    """The shipped collectives that give these bits. One that does not take the message gives none."""
    ranks, tokens = len(partials), total.shape[1]
    names = []
    for name, collective in COLLECTIVES.items():
        if collective.scatters != scattered:
            continue
        try:
            if scattered:
                shares = reduce_scatter(collective, [by_destination(x, ranks) for x in partials], executor="eager")
                result = torch.cat(shares, dim=1)[:, :tokens]
            else:
                result = all_reduce(collective, partials, executor="eager")[0]
        except ValueError:
            continue
        if same_bits(rounded(result, total.dtype), total):
            names.append(name)
    return frozenset(names)
