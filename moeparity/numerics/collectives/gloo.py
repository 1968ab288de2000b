"""gloo's ring all-reduce, and torch's ProcessGroupGloo on top of it.

Source imitated: pytorch/gloo `gloo/allreduce.cc` (ring) at 70dc360272, as torch 2.13 ships it. torch 2.13 does not take
gloo's newer shared-memory path within one node (`allreduce_shm.cc`, ranks ascending), and it is not simulated.
"""

from __future__ import annotations

from dataclasses import dataclass

from moeparity.numerics.collectives.declaration import Collective, Evidence
from moeparity.numerics.order_map import Message, OrderMap, Part, PerDestination, Rotation, tiles

SEGMENT = 1 << 20

_VERIFIED = Evidence(
    "verified",
    "live torch 2.13 gloo groups of 2, 3, 4 and 8 processes (tests/numerics/collectives/test_live_gloo.py); "
    "gloo/allreduce.cc ring at 70dc360272",
)


@dataclass(frozen=True, slots=True)
class GlooSegments:
    """Chunk c of the ring: n equal runs of whole segments of at most 1 MiB, at least two segments per chunk.

    In a small message the last chunks are short or missing.
    """

    def __str__(self) -> str:
        return "gloo_segments"

    def parts(self, message: Message) -> tuple[Part, ...]:
        """One part for each chunk that has elements, owned by its chunk number."""
        ranks, itemsize = message.ranks, message.itemsize
        segments = _up(max(-(-message.bytes // SEGMENT), 2 * ranks), ranks)
        segment = _up(-(-message.bytes // segments), itemsize)
        return tiles(message.elements, segments // ranks * segment // itemsize)


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


# Chunk c: ((x[c-1] + x[c-2]) + ... + x[c+1]) + x[c], each hop rounded.
DESCENDING = Rotation(start=-1, step=-1)

ALL_REDUCE = Collective("gloo.all_reduce", OrderMap(GlooSegments(), DESCENDING, "io"), _VERIFIED, average="divided")

# `reduce_scatter_tensor` reduces the whole tensor and keeps a slice; the list form reduces each destination's tensor by
# itself, so it cuts at other places.
REDUCE_SCATTER_TENSOR = Collective(
    "gloo.reduce_scatter_tensor", OrderMap(GlooSegments(), DESCENDING, "io"), _VERIFIED, scatters=True
)
REDUCE_SCATTER_LIST = Collective(
    "gloo.reduce_scatter_list", OrderMap(PerDestination(GlooSegments()), DESCENDING, "io"), _VERIFIED, scatters=True
)

ALL = (ALL_REDUCE, REDUCE_SCATTER_TENSOR, REDUCE_SCATTER_LIST)
