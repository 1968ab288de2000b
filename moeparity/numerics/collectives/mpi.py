"""Open MPI's ring and recursive doubling.

Source imitated: open-mpi/ompi `ompi/mca/coll/base/coll_base_allreduce.c` (intra_ring, intra_recursivedoubling) and
`coll_base_util.h` (COLL_BASE_COMPUTE_BLOCKCOUNT). Known for fp32 only.
"""

from __future__ import annotations

from dataclasses import dataclass

from moeparity.numerics.collectives.declaration import Collective, Evidence
from moeparity.numerics.order_map import (
    EveryPart,
    Message,
    OrderMap,
    Part,
    Rotation,
    Selection,
    When,
    Whole,
    chain,
    tiles,
)
from moeparity.numerics.orders import AnyTree

_VERIFIED = Evidence(
    "verified",
    "live Open MPI 4.1.4 groups of 3, 4, 5 and 8 processes, fp32 (tests/numerics/collectives/test_live_mpi.py); "
    "ompi/mca/coll/base/coll_base_allreduce.c at 07a69c33e8",
)


@dataclass(frozen=True, slots=True)
class MpiBlocks:
    """n blocks whose lengths differ by at most one element, the longer ones first."""

    def __str__(self) -> str:
        return "mpi_blocks"

    def parts(self, message: Message) -> tuple[Part, ...]:
        """One part per block, owned by its number; ValueError if there are fewer elements than ranks."""
        late, longer = divmod(message.elements, message.ranks)
        if late == 0:
            raise ValueError(f"the ring needs an element a rank: {message.elements} for {message.ranks} ranks")
        edge = longer * (late + 1)
        early = tiles(edge, late + 1)
        return early + tuple(
            Part(edge + part.start, edge + part.stop, longer + part.owner)
            for part in tiles(message.elements - edge, late)
        )


def recursive_doubling(ranks: int) -> AnyTree:
    """Neighbours first. If `ranks` is not a power of two, leading pairs are added before, until it is."""
    extra = ranks - (1 << (ranks.bit_length() - 1))
    level: list[AnyTree] = [(2 * pair, 2 * pair + 1) for pair in range(extra)]
    level += range(2 * extra, ranks)
    while len(level) > 1:
        level = [chain(level[i : i + 2]) for i in range(0, len(level), 2)]
    return level[0]


# Block c: ((x[c] + x[c+1]) + ...) + x[c-1]; gloo goes in the other direction, and NCCL starts elsewhere.
RING = Collective("openmpi.ring", OrderMap(MpiBlocks(), Rotation(start=0, step=1), "io"), _VERIFIED, dtypes=("fp32",))
RECURSIVE_DOUBLING = Collective(
    "openmpi.recursive_doubling",
    OrderMap(Whole(), EveryPart("recursive_doubling", recursive_doubling), "io"),
    _VERIFIED,
    dtypes=("fp32",),
)

ALL = (RING, RECURSIVE_DOUBLING)

RING_TABLE = Selection(
    "openmpi.allreduce_algorithm_4",
    ((When(fewer_elements_than_ranks=True), RECURSIVE_DOUBLING.name), (When(), RING.name)),
)
