"""Computes a pass shard by shard: kept shards are loaded, others go to workers, and all are joined in their order."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from moeparity.bisection.measures import codec
from moeparity.bisection.observe import Observation, observe
from moeparity.bisection.observed import Observed, ShardPart
from moeparity.bisection.plan import Plan
from moeparity.bisection.resume.pieces import PieceStore
from moeparity.bisection.shards import Shard, join, shard_part, shards_of
from moeparity.bisection.trials import Refusals
from moeparity.bisection.workers.crew import Crew, computed
from moeparity.bisection.workers.message import TASKS, Job, ShardTask, packed, unpacked
from moeparity.engine.lockstep import Counts
from moeparity.engine.memory import Memory
from moeparity.errors import MoeparityError
from moeparity.plan.toggles import Toggle
from moeparity.progress import Callback


@dataclass(frozen=True, slots=True, kw_only=True)
class Workforce:
    """Who computes the shards of a plan's passes, and the job that workers prepare; None: this process."""

    crew: Crew | None = None
    job: Job | None = None


HERE = Workforce()
"""This process alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedPass:
    """One pass of a plan, computed in shards.

    parents: by pass up to this one, the toggles that were taken apart for it; empty for the first pass.
    """

    plan: Plan
    toggles: Sequence[Toggle]
    parents: tuple[tuple[str, ...], ...]

    @property
    def number(self) -> int:
        """The number of the pass, from 0."""
        return len(self.parents)

    @property
    def observation(self) -> Observation:
        """A new observation of the pass, with nothing seen."""
        return Observation.of(self.plan, self.toggles, first=not self.parents)

    def observed(self, store: PieceStore | None, workforce: Workforce, progress: Callback | None = None) -> Observed:
        """What all shards saw together. Raises MoeparityError."""
        start, observation = time.perf_counter(), self.observation
        shards = shards_of(observation)
        pieces = [
            ShardPiece(sharded=self, shard=shard, place=place, count=len(shards), job=workforce.job, store=store)
            for place, shard in enumerate(shards)
        ]
        joined = _Joined(observation, shards)
        for piece, part in computed(pieces, workforce.crew, "shard", len(pieces), progress):
            if isinstance(part, MoeparityError):
                raise part
            joined.take(piece.place, part)
        if joined.refused.keys() - observation.refused.keys():
            # A trial that some shard could not run was not seen in full: the whole pass is computed again without it.
            first = not self.parents
            return observe(self.plan, self.toggles, first=first, refused=joined.refused, progress=progress)
        assert joined.memory is not None
        return observation.observed(joined.counts, joined.memory, time.perf_counter() - start)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPiece:
    """One shard as a piece of work, number `place` of `count`."""

    sharded: ShardedPass
    shard: Shard
    place: int
    count: int
    job: Job | None
    store: PieceStore | None

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"shard {self.place + 1} of {self.count}"

    def stored(self) -> ShardPart | None:
        """The part that an earlier run kept."""
        part = None if self.store is None else self.store.load(self.shard.name(self.sharded.number))
        return part if isinstance(part, ShardPart) else None

    def keep(self, part: ShardPart) -> None:
        """Keep the part for a later run."""
        if self.store is not None:
            self.store.save(self.shard.name(self.sharded.number), part)

    def compute(self) -> ShardPart:
        """The part, computed here."""
        sharded = self.sharded
        return shard_part(sharded.plan, sharded.toggles, self.shard, first=not sharded.parents)

    def message(self) -> bytes:
        """The task for a worker."""
        assert self.job is not None
        parents, shard = self.sharded.parents, self.shard
        return packed(TASKS, ShardTask(job=self.job, parents=parents, first=shard.first, last=shard.last))

    def read(self, data: bytes) -> ShardPart:
        """The part that a worker wrote."""
        part = unpacked(codec(self.sharded.plan.model.graph), data)
        assert isinstance(part, ShardPart)
        return part


class _Joined:
    """Joins the parts of shards in order, each as soon as all before it are there."""

    def __init__(self, observation: Observation, shards: Sequence[Shard]) -> None:
        self.observation, self.shards = observation, shards
        self.counts, self.next = Counts(), 0
        self.refused: Refusals = {}
        self.memory: Memory | None = None
        self.waiting: dict[int, ShardPart] = {}

    def take(self, number: int, of_shard: ShardPart) -> None:
        """Take the part of the shard with that number."""
        self.waiting[number] = of_shard
        while (part := self.waiting.pop(self.next, None)) is not None:
            join(self.observation, self.shards[self.next], part)
            self.counts = self.counts.joined(part.counts)
            self.refused |= part.refused
            self.memory = part.memory if self.memory is None else self.memory.joined(part.memory)
            self.next += 1
