"""Barriers of blocks and of clusters: who waits at which, and when it opens."""

from __future__ import annotations

import numpy as np

from moeparity.ptx.formats import Array
from moeparity.ptx.syntax import PtxError

COUNT = 16
"""Barriers that a block has."""
_CLUSTER = COUNT
"""What a thread that waits at its cluster's barrier waits at."""


class Barriers:
    """For `lanes` threads in blocks: the barrier each waits at, and arrivals of threads that go on."""

    def __init__(self, block: Array, blocks: int, mates: int) -> None:
        self._block = block
        self._blocks = blocks
        self._cluster = block // mates
        self._arrived = np.zeros(block.size, bool)
        """Whether a thread has arrived at its cluster's barrier and not waited yet."""
        self._opened = np.zeros(block.size, bool)
        """Whether the barrier that it arrived at is open."""
        self.waiting = np.full(block.size, -1, np.int64)
        """The barrier a thread waits at, -1 where it runs."""
        self._needed = np.zeros(blocks * COUNT, np.int64)
        self._passed = np.zeros(blocks * COUNT, np.int64)
        self._vote = np.zeros(block.size, bool)
        self._votes = np.zeros((2, block.size), np.int64)

    def arrive(
        self, index: Array, barrier: Array, threads: Array | None, *, waits: bool, vote: Array | None = None
    ) -> None:
        """Threads come to a barrier; `threads` are waited for, all of the block that run where it is None."""
        if (barrier >= COUNT).any():
            raise PtxError(f"A block has {COUNT} barriers, 0 to {COUNT - 1}; {int(barrier.max())} was named.")
        key = self._block[index] * COUNT + barrier.astype(np.int64)
        self._needed[key] = 0 if threads is None else threads.astype(np.int64)
        if vote is not None:
            self._vote[index] = vote
        if waits:
            self.waiting[index] = np.broadcast_to(barrier, index.shape).astype(np.int64)
        else:
            np.add.at(self._passed, key, 1)

    def arrive_in_cluster(self, index: Array) -> None:
        """Threads come to the barrier of their cluster and go on. PtxError for one that has not waited since."""
        if self._arrived[index].any():
            raise PtxError("A thread arrived twice at its cluster's barrier without waiting at it in between.")
        self._arrived[index] = True
        self._opened[index] = False

    def wait_for_cluster(self, index: Array) -> None:
        """Threads wait until all of their cluster have arrived. PtxError for one that did not arrive."""
        if not self._arrived[index].all():
            raise PtxError("A thread waits at its cluster's barrier without having arrived at it.")
        self.waiting[index] = _CLUSTER

    def opened(self, running: Array) -> Array:
        """The threads that go on now, of `running` [lanes], which have not ended; they wait no longer."""
        return np.concatenate([self._opened_in_blocks(running), self._opened_in_clusters(running)])

    def _opened_in_clusters(self, running: Array) -> Array:
        if not self._arrived.any():
            return np.zeros(0, np.int64)
        due = running & ~(self._arrived & ~self._opened)
        is_full = np.bincount(self._cluster[due], minlength=self._cluster[-1] + 1) > 0
        self._opened |= self._arrived & ~is_full[self._cluster]
        lanes = np.flatnonzero((self.waiting == _CLUSTER) & self._opened)
        self._arrived[lanes] = False
        self.waiting[lanes] = -1
        return lanes

    def _opened_in_blocks(self, running: Array) -> Array:
        waiters = np.flatnonzero((self.waiting >= 0) & (self.waiting < COUNT))
        if waiters.size == 0:
            return waiters
        key = self._block[waiters] * COUNT + self.waiting[waiters]
        present = np.bincount(key, minlength=self._blocks * COUNT) + self._passed
        alive = np.repeat(np.bincount(self._block[running], minlength=self._blocks), COUNT)
        complete = present >= np.where(self._needed > 0, self._needed, alive)
        released = complete[key]
        lanes, keys = waiters[released], key[released]
        self._count_votes(lanes, keys)
        self._passed[keys] = 0
        self.waiting[lanes] = -1
        return lanes

    def votes(self, index: Array) -> tuple[Array, Array]:
        """How many threads held true, and how many there were, at the barrier each of these went through last."""
        return self._votes[0, index], self._votes[1, index]

    def _count_votes(self, lanes: Array, keys: Array) -> None:
        size = self._blocks * COUNT
        self._votes[0, lanes] = np.bincount(keys, weights=self._vote[lanes], minlength=size).astype(np.int64)[keys]
        self._votes[1, lanes] = np.bincount(keys, minlength=size)[keys]
