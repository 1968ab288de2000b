"""What passes over a study saw of the trials, and what the sections' observers kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from moeparity.bisection.observers import Changes, Logits, Routes
from moeparity.bisection.trials import TrialKey, TrialKind
from moeparity.bisection.watch import Search, Watch
from moeparity.engine.lockstep import Counts
from moeparity.engine.memory import Memory
from moeparity.metrics.routing import Flips
from moeparity.metrics.tokens import SequenceSums
from moeparity.search.memo import Mixture, Outcome

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCost:
    """What passes cost: kernel calls, how many those would be without sharing work, seconds, memory."""

    counts: Counts
    naive_evaluations: int
    seconds: float
    memory: Memory

    def joined(self, further: PassCost) -> PassCost:
        """The cost of both together."""
        return PassCost(
            counts=self.counts.joined(further.counts),
            naive_evaluations=self.naive_evaluations + further.naive_evaluations,
            seconds=self.seconds + further.seconds,
            memory=self.memory.joined(further.memory),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What the passes over a study saw of every trial, and what each section's observer kept of the first pass.

    sections: by name of the watch; one without an observer is missing. answers: by name of the search, what it found in
    passes of its own. refused: trials that could not run, with the node, the choice and the reason.
    """

    changes: Changes
    routes: Routes
    logits: Logits
    cost: PassCost
    sections: Mapping[str, Any]
    answers: Mapping[str, Any]
    refused: Mapping[TrialKey, str]

    def of_watch(self, watch: Watch[T]) -> T | None:
        """What this watch's observer kept of the first pass; None if it made no observer."""
        return self.sections.get(watch.name)

    def of_search(self, search: Search[T]) -> T | None:
        """What this search found in passes of its own; None if it looked for nothing."""
        return self.answers.get(search.name)

    def keys(self, kind: TrialKind) -> list[TrialKey]:
        """The trials of one kind that ran, in order, without those whose routes were forced."""
        keys = dict.fromkeys(key for key, _ in self.changes.nodes if isinstance(key, TrialKey))
        return [key for key in keys if key.kind == kind]

    def joined(self, further: Observed) -> Observed:
        """This and `further`, a later pass over the same study with other trials, as one."""
        return replace(
            self,
            changes=self.changes.joined(further.changes),
            routes=self.routes.joined(further.routes),
            logits=self.logits.joined(further.logits),
            cost=self.cost.joined(further.cost),
            refused={**self.refused, **further.refused},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPart:
    """What was seen of one shard and what it cost, to be joined into the `Observation` of the whole pass.

    refused: trials that could not run, as in `Observed`.
    """

    changes: Changes
    routes: Routes
    logits: Logits
    sections: Mapping[str, Any]
    refused: Mapping[TrialKey, str]
    counts: Counts
    memory: Memory
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MixturePass:
    """The outcomes of one pass over mixtures and its cost; a killed run goes on from it."""

    outcomes: Mapping[Mixture, Outcome]
    counts: Counts
    seconds: float


STATE: Final = (
    Observed,
    ShardPart,
    MixturePass,
    Outcome,
    Changes,
    Routes,
    Logits,
    SequenceSums,
    Flips,
    PassCost,
    Counts,
    Memory,
    TrialKey,
)
"""The classes in which passes are kept, besides those that watches name."""
