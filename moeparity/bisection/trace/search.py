"""Grafts: runs the reference continued from what was recorded after each layer, and with the recorded routes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from moeparity.bisection.observed import Observed
from moeparity.bisection.observers import Logits
from moeparity.bisection.resume.pieces import PieceStore
from moeparity.bisection.study import Study
from moeparity.bisection.trials import candidate, walker
from moeparity.bisection.watch import Search
from moeparity.engine.grafts import Graft
from moeparity.engine.routes import REPLAYED, Forced, Replayed
from moeparity.engine.walker import Walker
from moeparity.errors import SpecError
from moeparity.metrics.tokens import SequenceSums
from moeparity.plan.graph import Graph
from moeparity.plan.sides import CANDIDATE, REFERENCE
from moeparity.progress import Callback


@dataclass(frozen=True, slots=True)
class Cut:
    """A place between segments. first, last: the segments since the cut before. grafts: the recorded values that
    cross it.
    """

    first: str
    last: str
    grafts: Mapping[str, Graft]

    @property
    def name(self) -> str:
        """The report's name for the part between the cut before and this one."""
        return self.first if self.first == self.last else f"{self.first} to {self.last}"


@dataclass(frozen=True, slots=True)
class Grafted:
    """Results against the reference: for each cut, in order, the reference continued from there; and the reference with
    recorded routes.
    """

    cuts: tuple[tuple[str, SequenceSums], ...]
    routes: tuple[tuple[Replayed, SequenceSums], ...]


def search(study: Study, observed: Observed, progress: Callback | None, store: PieceStore | None) -> Grafted | None:
    """What the grafts gave; None if the candidate is not a trace, or does not differ."""
    if study.recorded is None or not study.recipe.grafts or not study.attribution:
        return None
    if not bool(observed.logits.sums(CANDIDATE).unequal.any()):
        return None
    own_cuts = list(cuts(study.model.graph, study.recorded.grafts))
    trials = [*_grafted(study, own_cuts), *_routed(study)]
    sums: dict[str, SequenceSums] = {}

    def observing(trials: Sequence[Walker]) -> list[Logits]:
        return [Logits.of(study, [trial.name for trial in trials])]

    always = [walker(study, REFERENCE, study.reference), candidate(study)]
    for finished in study.passes(progress).try_all(always, trials, observing):
        (logits,) = finished.observers
        assert isinstance(logits, Logits)
        sums |= {trial.name: logits.sums(trial.name) for trial in finished.trials}
    return Grafted(
        cuts=tuple((cut.name, sums[cut.name]) for cut in own_cuts if cut.name in sums),
        routes=tuple((choice, sums[choice]) for choice in REPLAYED if choice in sums),
    )


def cuts(graph: Graph, grafts: Mapping[str, Graft]) -> Iterator[Cut]:
    """The places after segments whose closing value was recorded; none after the last segment."""
    first = graph.segments[0].name
    for number, segment in enumerate(graph.segments[:-1]):
        later = {value for after in graph.segments[number + 1 :] for node in after.nodes for value in node.inputs}
        computed = [value for before in graph.segments[: number + 1] for node in before.nodes for value in node.values]
        crossing = [value for value in computed if value in later]
        stream = [value for node in segment.nodes for value in node.values if value in later]
        if stream and stream[-1] in grafts:
            yield Cut(first, segment.name, {value: grafts[value] for value in crossing if value in grafts})
            first = graph.segments[number + 1].name


def _grafted(study: Study, own_cuts: Sequence[Cut]) -> list[Walker]:
    return [replace(walker(study, cut.name, study.reference), grafts=cut.grafts) for cut in own_cuts]


def _routed(study: Study) -> Iterator[Walker]:
    """Walkers of the reference with recorded routes, if every router's routes were recorded."""
    assert study.recorded is not None, "asked of a trace only"
    routers = [node for node in study.model.graph.nodes if node.op.role.routes]
    if not routers or not all(value in study.recorded.grafts for node in routers for value in node.values):
        return
    for choice in REPLAYED:
        with suppress(SpecError):
            yield walker(study, choice, study.reference, routes=Forced(of=CANDIDATE, replayed=choice))


GRAFTED: Final[Search[Grafted]] = Search("trace", search)
