"""NCCL's PAT reduce-scatter: a binomial tree towards each destination, in the order of its schedule.

Source imitated: NVIDIA/nccl at 5067397c26, `src/include/collectives.h` PatRSAlgorithm and `src/device/prims_simple.h`
patReduce. PAT runs only with one GPU per node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from moeparity.numerics.collectives.declaration import Collective, Evidence
from moeparity.numerics.order_map import OrderMap, Part, PerDestination, chain
from moeparity.numerics.orders import AnyTree

LARGEST = 16
"""With more ranks the aggregation factor, and so the order, depends on the message."""


@dataclass(frozen=True, slots=True)
class PatOrder:
    """The rank at offset `t` before the destination adds what its children send to its own value, in schedule order.

    The children of offset t are t + 2^i, below its lowest set bit. Up to 16 ranks the schedule aggregates as many steps
    as it can, whatever the size of the message.
    """

    def __str__(self) -> str:
        return "pat"

    def tree(self, part: Part, ranks: int) -> AnyTree:
        """The tree of destination `part.owner`."""
        children: dict[int, list[int]] = {offset: [] for offset in range(ranks)}
        for child in _senders(ranks):
            if child < ranks:
                children[child & (child - 1)].append(child)

        def value(offset: int) -> AnyTree:
            return chain([(part.owner - offset) % ranks, *(value(child) for child in children[offset])])

        return value(0)


def _senders(ranks: int) -> Iterator[int]:
    """Offsets of the senders, in the order in which their sums are received (phases 1 to 4 of getNextOp).

    Within a step the schedule mirrors the bits of the offsets; these have different receivers, so that has no effect.
    """
    factor = 1
    while factor < ranks // 2:
        factor *= 2
    delta = (1 << (ranks - 1).bit_length()) // factor
    for step in range(delta - 1, 1, -1):
        yield from range(step, factor * delta, delta)
    scale = 1
    while scale < factor:
        peers = range(scale * delta, factor * delta, 2 * scale * delta)
        yield from (peer + 1 for peer in peers)
        yield from peers
        scale *= 2
    if ranks > 1:
        yield 1


PAT = Collective(
    "nccl.pat_reduce_scatter",
    OrderMap(PerDestination(), PatOrder(), "io"),
    Evidence("read", "NVIDIA/nccl at 5067397c26: src/include/collectives.h PatRSAlgorithm"),
    scatters=True,
    average="scaled_inputs",
    worlds=tuple(range(2, LARGEST + 1)),
)

ALL = (PAT,)
