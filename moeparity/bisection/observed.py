"""What passes over a plan saw of the trials, and what their sections kept of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from moeparity.bisection.observers import Changes, Logits, Routes
from moeparity.bisection.resume.codec import Codec, classes_of
from moeparity.bisection.sections import modules
from moeparity.bisection.trials import Kind, TrialKey
from moeparity.engine.lockstep import Counts
from moeparity.engine.memory import Memory
from moeparity.metrics.routing import Flips
from moeparity.metrics.tokens import SequenceSums
from moeparity.plan.graph import Graph
from moeparity.search.memo import Mixture, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What passes cost: kernel calls, what they would be without sharing, seconds and memory."""

    counts: Counts
    naive_evaluations: int
    seconds: float
    memory: Memory

    def joined(self, further: Cost) -> Cost:
        """Of both together."""
        return Cost(
            counts=self.counts.joined(further.counts),
            naive_evaluations=self.naive_evaluations + further.naive_evaluations,
            seconds=self.seconds + further.seconds,
            memory=self.memory.joined(further.memory),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What the passes over a plan saw: of every trial, and by section what was kept for it of the first pass.

    A section that has nothing to see is not in `sections`; what it found in passes of its own is in `answers`.
    """

    changes: Changes
    routes: Routes
    logits: Logits
    cost: Cost
    sections: Mapping[str, Any]
    answers: Mapping[str, Any]

    def keys(self, kind: Kind) -> list[TrialKey]:
        """The trials of one kind that ran, in their order; those with forced routes are left out."""
        keys = dict.fromkeys(key for key, _ in self.changes.nodes if isinstance(key, TrialKey))
        return [key for key in keys if key.kind == kind]

    def joined(self, further: Observed) -> Observed:
        """Both together, `further` being a later pass over the same plan with other trials."""
        return replace(
            self,
            changes=self.changes.joined(further.changes),
            routes=self.routes.joined(further.routes),
            logits=self.logits.joined(further.logits),
            cost=self.cost.joined(further.cost),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPart:
    """What was seen of one shard, and what it cost: for an `Observation` of the whole pass to join."""

    changes: Changes
    routes: Routes
    logits: Logits
    sections: Mapping[str, Any]
    counts: Counts
    memory: Memory
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MixturePass:
    """What one pass over mixtures gave, and what it cost: what a killed run goes on from."""

    outcomes: Mapping[Mixture, Outcome]
    counts: Counts
    seconds: float


def codec(graph: Graph, *results: type) -> Codec:
    """Writes and reads what a pass saw of a graph, and results of these classes."""
    return Codec(_classes(results), {node.name: node for node in graph.nodes})


@cache
def _classes(results: tuple[type, ...]) -> tuple[type, ...]:
    """The classes of what passes saw and of results, worked out once: every piece of work asks for them."""
    state = (
        Observed,
        ShardPart,
        MixturePass,
        Outcome,
        Changes,
        Routes,
        Logits,
        SequenceSums,
        Flips,
        Cost,
        Counts,
        Memory,
        TrialKey,
    )
    section_classes = (cls for module in modules("observe").values() for cls in module.STATE)
    result_classes = (cls for result in results for cls in classes_of(result))
    return tuple(dict.fromkeys((*state, *section_classes, *result_classes)))
