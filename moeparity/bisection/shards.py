"""Cuts a pass into shards: groups of waves that no schedule ties together, computed apart and joined in their order."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from moeparity.bisection.observe import Observation, ran
from moeparity.bisection.observed import ShardPart
from moeparity.bisection.plan import Plan
from moeparity.engine.grid import Grid
from moeparity.plan.toggles import Toggle, split
from moeparity.progress import Callback

MOST = 32
"""A pass has at most so many shards. Each reads all weights, and the more there are, the less a lost worker loses. It
depends on nothing in which another command on the same plan could differ, so that this command can use kept shards.
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
    sequences, length = observation.plan.tokens.input_ids.shape
    waves = Grid(sequences, length, dict.fromkeys(walk.schedule for walk in observation.walkers)).waves
    count = min(MOST, len(waves))
    edges = [len(waves) * number // count for number in range(count + 1)]
    return tuple(Shard(first, last, waves[first][0], waves[last - 1][1]) for first, last in pairwise(edges))


def shard_part(
    plan: Plan, toggles: Sequence[Toggle], shard: Shard, *, first: bool, progress: Callback | None = None
) -> ShardPart:
    """Run one shard of a pass."""
    start = time.perf_counter()
    whole = Observation.of(plan, toggles, first=first)
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


def join(observation: Observation, shard: Shard, part: ShardPart) -> None:
    """Add what was seen of a shard; shards have to come in the order of their sequences."""
    rows = slice(shard.start, shard.end)
    observation.changes.join(part.changes, rows)
    observation.routes.join(part.routes, rows)
    observation.logits.join(part.logits, rows)
    for name, observer in observation.sections.items():
        observer.join(part.sections[name], rows)


def taken_apart(plan: Plan, names: Sequence[Sequence[str]]) -> tuple[Plan, list[Toggle]]:
    """The plan after the named toggles were taken apart, pass by pass, and the toggles that the last of these passes
    tries.
    """
    parts: list[Toggle] = []
    for parents in names:
        toggles = {toggle.name: toggle for toggle in plan.toggles}
        parts = [part for name in parents for part in split(toggles[name])]
        plan = plan.with_toggles(parts)
    return plan, parts
