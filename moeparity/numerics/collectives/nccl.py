"""NCCL's ring, tree and symmetric-memory reductions.

Source imitated: NVIDIA/nccl at 5067397c26: `src/enqueue.cc` (scheduleCollTasksToPlan, calcCollChunking),
`src/device/all_reduce.h` (runRing, runTreeSplit), `src/device/reduce_scatter.h`, `src/graph/connect.cc`,
`src/graph/trees.cc`, `src/device/symmetric/`. What NCCL finds out about the machine is an input here: number of
channels, protocol, nodes, and the ring of each channel (recipes give all but the rings, in which ranks ascend).
Versions that do not give each channel at least 32 KiB of traffic cut elsewhere. This project has compared none of it
with real NCCL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from moeparity.numerics.collectives.declaration import Collective, Evidence
from moeparity.numerics.collectives.nccl_trees import NcclTree, Pattern
from moeparity.numerics.order_map import (
    ASCENDING,
    Message,
    OrderMap,
    Part,
    PerDestination,
    RankOrder,
    Rotation,
    Whole,
    tiles,
)

Protocol = Literal["simple", "ll", "ll128"]

MIN_TRAFFIC = 32 << 10
_FULL_CHUNK = {"simple": (4 << 20) // 8 * 4, "ll": 8 * 512 * 16 // 2, "ll128": 120 * 640 * 8 // 16 * 15}
"""Bytes of a ring's chunk with default buffer sizes: 4 of 8 steps of 4 MiB; for LL and LL128 one step of the buffer,
minus the flags that travel with the data.
"""


@dataclass(frozen=True, slots=True)
class NcclChannels:
    """Consecutive runs of cells for the channels of one operation that is alone in its launch.

    channels: how many the operation may use (after NCCL lowered the number for a small message). existing: how many the
    communicator has. traffic: 2 for an all-reduce; None stands for the number of ranks (reduce-scatter).
    """

    channels: int = 1
    existing: int | None = None
    protocol: Protocol = "simple"
    traffic: int | None = 2

    def __str__(self) -> str:
        existing = "" if self.existing is None else f" of {self.existing}"
        return f"nccl_channels({self.channels}{existing}, {self.protocol})"

    def parts(self, message: Message) -> tuple[Part, ...]:
        """One part a channel."""
        traffic = self.traffic or message.ranks
        total = max(MIN_TRAFFIC, message.bytes * traffic)
        per_channel = _up(total // self.channels, 16)
        traffic *= 4 if self.protocol == "ll" else 1
        cell = _up(-(-MIN_TRAFFIC // traffic), 16)
        cells = -(-message.bytes // cell)
        bounds, start = [], 0
        for count in _cells_per_channel(cells, -(-per_channel // (cell * traffic)), self.existing or self.channels):
            stop = min(start + count * cell // message.itemsize, message.elements)
            bounds.append((start, stop))
            start = stop
        return tuple(Part(start, stop, channel=channel) for channel, (start, stop) in enumerate(bounds))


def _cells_per_channel(cells: int, target: int, existing: int) -> list[int]:
    """The low, middle and high channels of scheduleCollTasksToPlan, for an operation that starts on channel 0."""
    target = min(cells, target)
    low = cells if existing == 1 else target
    remainder = cells - low
    middle, high = divmod(remainder, target) if target else (0, 0)
    if existing < (low != 0) + middle + (high != 0):
        middle = existing - 2
        target, odd_cells = divmod(remainder, middle + 1)
        high = target + odd_cells
    return [count for count in (low, *[target] * middle, high) if count]


@dataclass(frozen=True, slots=True)
class NcclRingChunks:
    """The n chunks of each loop over a channel: full ones, and in the last loop what remains, in 16-byte steps."""

    channels: NcclChannels

    def __str__(self) -> str:
        return f"{self.channels} | ring_chunks"

    def parts(self, message: Message) -> tuple[Part, ...]:
        """One part per chunk, owned by its number, on its channel; chunks without elements are left out."""
        full = _FULL_CHUNK[self.channels.protocol] // message.itemsize
        return tuple(part for channel in self.channels.parts(message) for part in _chunks(channel, full, message))


def _chunks(channel: Part, full: int, message: Message) -> list[Part]:
    parts: list[Part] = []
    start = channel.start
    while start < channel.stop:
        count = min(channel.stop - start, full * message.ranks)
        size = full
        if count < full * message.ranks:
            size = _up(-(-count // message.ranks), 16 // message.itemsize)
        parts += [
            Part(start + part.start, start + part.stop, part.owner, channel.channel) for part in tiles(count, size)
        ]
        start += count
    return parts


@dataclass(frozen=True, slots=True)
class RingDestinations:
    """A ring reduce-scatter: the sum of block r ends at rank r's position on each channel's ring."""

    channels: NcclChannels
    rings: tuple[tuple[int, ...], ...] = ()

    def __str__(self) -> str:
        return f"per_destination({self.channels})"

    def parts(self, message: Message) -> tuple[Part, ...]:
        """One part for each destination and channel, owned by the destination's position on that channel's ring."""
        blocks = PerDestination(self.channels).parts(message)
        return tuple(
            Part(
                part.start,
                part.stop,
                self._position(part.start * message.ranks // message.elements, part),
                part.channel,
            )
            for part in blocks
        )

    def _position(self, rank: int, part: Part) -> int:
        return self.rings[min(part.channel, len(self.rings) - 1)].index(rank) if self.rings else rank


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


_RING = Evidence("read", "NVIDIA/nccl at 5067397c26: src/device/all_reduce.h runRing, src/enqueue.cc")
_TREE = Evidence(
    "read", "NVIDIA/nccl at 5067397c26: src/device/all_reduce.h runTreeSplit, src/graph/{connect,trees}.cc"
)
_SYMMETRIC = Evidence("read", "NVIDIA/nccl at 5067397c26: src/device/symmetric (AGxLL)")
_SWITCH = Evidence(
    "opaque",
    "src/device/reduce_kernel.h Apply_LoadMultimem: the switch adds in fp32, in an order that is not published: run as "
    "ranks ascending, rounded once",
)

Rings = tuple[tuple[int, ...], ...]


def ring_all_reduce(
    channels: int = 1, *, existing: int | None = None, protocol: Protocol = "simple", rings: Rings = ()
) -> Collective:
    """Chunk c: ((x[c+1] + x[c+2]) + ...) + x[c] in ring positions, each hop rounded; AVG scales the inputs first."""
    partition = NcclRingChunks(NcclChannels(channels, existing, protocol))
    order = Rotation(start=1, step=1, rings=rings)
    return Collective("nccl.ring", OrderMap(partition, order, "io"), _RING, average="scaled_inputs")


def ring_reduce_scatter(channels: int = 1, *, rings: Rings = ()) -> Collective:
    """The ring's sum, whose owner is each destination's position on the ring."""
    partition = RingDestinations(NcclChannels(channels, None, "simple", traffic=None), rings)
    order = Rotation(start=1, step=1, rings=rings)
    return Collective(
        "nccl.ring_reduce_scatter", OrderMap(partition, order, "io"), _RING, scatters=True, average="scaled_inputs"
    )


def tree_all_reduce(
    channels: int = 1,
    *,
    protocol: Protocol = "simple",
    nodes: Sequence[Sequence[int]] | None = None,
    pattern: Pattern = "balanced_tree",
    double_after: int = 1,
) -> Collective:
    """A chain within each node, and across nodes the two trees of `ncclGetDtree`, for alternate runs of channels.

    nodes: the ranks of each node in the order of its chain (None: one node, ranks ascending).
    """
    order: RankOrder = NcclTree(None if nodes is None else tuple(map(tuple, nodes)), pattern, double_after)
    partition = NcclChannels(channels, None, protocol)
    return Collective("nccl.tree", OrderMap(partition, order, "io"), _TREE, average="scaled_inputs")


def as_set(
    collective: Collective, *, channels: int, protocol: Protocol, node: int, pattern: Pattern, ranks: int
) -> Collective:
    """NCCL's ring or tree with this many channels; any other `collective` unchanged.

    node: ranks per node, in turn, each node's chain ascending (0: all `ranks` are on one node). The second half of the
    channels takes the second tree across nodes.
    """
    if collective.name == RING.name:
        return ring_all_reduce(channels, protocol=protocol)
    if collective.name != TREE.name:
        return collective
    nodes = None if node == 0 else [range(first, first + node) for first in range(0, ranks, node)]
    node_pattern: Pattern = "tree" if node == 1 else pattern
    half = max(1, channels // 2)
    return tree_all_reduce(channels, protocol=protocol, nodes=nodes, pattern=node_pattern, double_after=half)


RING = ring_all_reduce()
RING_REDUCE_SCATTER = ring_reduce_scatter()
TREE = tree_all_reduce()
SYMMETRIC_LL = Collective("nccl.symmetric_ll", OrderMap(Whole(), ASCENDING, "fp32"), _SYMMETRIC, average="scaled_fp32")
NVLS = Collective("nccl.nvls", OrderMap(Whole(), ASCENDING, "fp32"), _SWITCH)

ALL = (RING, RING_REDUCE_SCATTER, TREE, SYMMETRIC_LL, NVLS)
