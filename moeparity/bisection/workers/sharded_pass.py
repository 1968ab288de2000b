"""A pass in shards: groups of waves that no schedule ties together, computed apart, kept, and joined in their order."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from moeparity.bisection.measures import codec
from moeparity.bisection.observe import Observation, observe, ran
from moeparity.bisection.observed import Observed, ShardPart
from moeparity.bisection.resume.pieces import PieceStore
from moeparity.bisection.study import Study
from moeparity.bisection.trials import Refusals
from moeparity.bisection.workers.crew import Crew, Piece, computed
from moeparity.bisection.workers.message import TASKS, Job, ShardTask, packed
from moeparity.engine.grid import Grid
from moeparity.engine.lockstep import Counts
from moeparity.engine.memory import Memory
from moeparity.errors import MoeparityError
from moeparity.plan.toggles import Toggle, split
from moeparity.progress import Callback

MOST = 32
"""A pass has at most this many shards. Each reads all weights, and the more there are, the less a lost worker loses.
The number depends on nothing in which another command on the same study could differ, so that its kept shards can be
used.
"""
SHARD = "{}.sequences-"
"""How the names of a pass's kept shards begin."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The waves `first` to `last` - 1 of a pass, which are the sequences `start` to `end` - 1."""

    first: int
    last: int
    start: int
    end: int

    def name(self, number: int) -> str:
        """The name under which the shard is kept, for the pass with that number."""
        return f"{SHARD.format(number)}{self.start}-{self.end}"


def shards_of(observation: Observation) -> tuple[Shard, ...]:
    """The shards of a pass: at most `MOST`, of about equally many sequences as far as the waves allow."""
    sequences, length = observation.study.tokens.input_ids.shape
    waves = Grid.of(observation.walkers, sequences, length).waves
    count = min(MOST, len(waves))
    edges = [len(waves) * number // count for number in range(count + 1)]
    return tuple(Shard(first, last, waves[first][0], waves[last - 1][1]) for first, last in pairwise(edges))


def shard_part(
    study: Study, toggles: Sequence[Toggle], shard: Shard, *, first: bool, progress: Callback | None = None
) -> ShardPart:
    """Run one shard of a pass."""
    start = time.perf_counter()
    whole = Observation.of(study, toggles, first=first)
    observation, counts, memory = ran(whole, progress, slice(shard.first, shard.last))
    rows = slice(shard.start, shard.end)
    return ShardPart(
        changes=observation.changes,
        routes=observation.routes,
        logits=observation.logits,
        sections={name: observer.part(rows) for name, observer in observation.sections.items()},
        refused=observation.refused,
        counts=counts,
        memory=memory,
        seconds=time.perf_counter() - start,
    )


def taken_apart(study: Study, names: Sequence[Sequence[str]]) -> tuple[Study, list[Toggle]]:
    """The study after the named toggles were taken apart, pass by pass, and the toggles that the last of these passes
    tries.
    """
    parts: list[Toggle] = []
    for parents in names:
        toggles = {toggle.name: toggle for toggle in study.toggles}
        parts = [part for name in parents for part in split(toggles[name])]
        study = study.with_toggles(parts)
    return study, parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Workforce:
    """Who computes the shards of a study's passes, and the job that workers prepare; None: this process."""

    crew: Crew | None = None
    job: Job | None = None


HERE = Workforce()
"""This process alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedPass:
    """One pass of a study, computed in shards.

    parents: by pass up to this one, the toggles that were taken apart for it; empty for the first pass.
    """

    study: Study
    toggles: Sequence[Toggle]
    parents: tuple[tuple[str, ...], ...]

    @property
    def number(self) -> int:
        """The number of the pass, from 0."""
        return len(self.parents)

    @property
    def observation(self) -> Observation:
        """A new observation of the pass, with nothing seen."""
        return Observation.of(self.study, self.toggles, first=not self.parents)

    def observed(self, store: PieceStore | None, workforce: Workforce, progress: Callback | None = None) -> Observed:
        """What all shards saw together. Raises MoeparityError."""
        start, observation = time.perf_counter(), self.observation
        shards = shards_of(observation)
        pieces = [
            ShardPiece(
                name=f"shard {place + 1} of {len(shards)}",
                place=place,
                key=shard.name(self.number),
                store=store,
                codec=codec(self.study.model.graph),
                sharded=self,
                shard=shard,
                job=workforce.job,
            )
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
            return observe(self.study, self.toggles, first=first, refused=joined.refused, progress=progress)
        assert joined.memory is not None
        return observation.observed(joined.counts, joined.memory, time.perf_counter() - start)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPiece(Piece):
    """One shard of a pass as a piece of work."""

    sharded: ShardedPass
    shard: Shard
    job: Job | None

    def compute(self) -> ShardPart:
        """The part, computed here."""
        sharded = self.sharded
        return shard_part(sharded.study, sharded.toggles, self.shard, first=not sharded.parents)

    def message(self) -> bytes:
        """The task for a worker."""
        assert self.job is not None
        parents, shard = self.sharded.parents, self.shard
        return packed(TASKS, ShardTask(job=self.job, parents=parents, first=shard.first, last=shard.last))


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
            shard = self.shards[self.next]
            rows = slice(shard.start, shard.end)
            self.observation.changes.join(part.changes, rows)
            self.observation.routes.join(part.routes, rows)
            self.observation.logits.join(part.logits, rows)
            for name, observer in self.observation.sections.items():
                observer.join(part.sections[name], rows)
            self.counts = self.counts.joined(part.counts)
            self.refused |= part.refused
            self.memory = part.memory if self.memory is None else self.memory.joined(part.memory)
            self.next += 1
