"""All parts of a report as they are measured: the one list of what observes passes and what is made of that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from graphlib import TopologicalSorter
from typing import Any, Final

from moeparity.bisection.arrival import measure as arrival
from moeparity.bisection.blame import measure as blame
from moeparity.bisection.context import Context, Measure
from moeparity.bisection.degeneracy import measure as degeneracy
from moeparity.bisection.determinism import measure as determinism
from moeparity.bisection.digests import measure as digests
from moeparity.bisection.distribution import measure as distribution
from moeparity.bisection.divergence import measure as divergence
from moeparity.bisection.envelope import measure as envelope
from moeparity.bisection.flips import measure as flips
from moeparity.bisection.floor import measure as floor
from moeparity.bisection.graph import measure as graph
from moeparity.bisection.nearest import measure as nearest
from moeparity.bisection.nonfinite import measure as nonfinite
from moeparity.bisection.observed import STATE, Observed
from moeparity.bisection.oracle import measure as oracle
from moeparity.bisection.per_token import measure as per_token
from moeparity.bisection.provenance import measure as provenance
from moeparity.bisection.real_ranks.data import RealRanks
from moeparity.bisection.record import measure as record
from moeparity.bisection.replay import measure as replay
from moeparity.bisection.report import Report
from moeparity.bisection.resume.codec import Codec, classes_of
from moeparity.bisection.rewards import measure as rewards
from moeparity.bisection.run import measure as run
from moeparity.bisection.schedule import measure as schedule
from moeparity.bisection.shares import measure as shares
from moeparity.bisection.spikes import measure as spikes
from moeparity.bisection.study import Study
from moeparity.bisection.summary import measure as summary
from moeparity.bisection.toggles import measure as toggles
from moeparity.bisection.tokens import measure as tokens
from moeparity.bisection.trace import measure as trace
from moeparity.bisection.updates import measure as updates
from moeparity.bisection.verdict import measure as verdict
from moeparity.plan.graph import Graph
from moeparity.progress import Callback

MEASURES: Final = (
    run.MEASURE,
    record.MEASURE,
    record.OTHER_MEASURE,
    degeneracy.MEASURE,
    verdict.MEASURE,
    divergence.MEASURE,
    flips.MEASURE,
    toggles.MEASURE,
    tokens.MEASURE,
    distribution.MEASURE,
    floor.MEASURE,
    oracle.MEASURE,
    arrival.MEASURE,
    spikes.MEASURE,
    updates.MEASURE,
    rewards.MEASURE,
    replay.MEASURE,
    envelope.MEASURE,
    shares.MEASURE,
    determinism.MEASURE,
    nearest.MEASURE,
    nonfinite.MEASURE,
    schedule.MEASURE,
    trace.MEASURE,
    Measure(gives=RealRanks, measure=lambda of: of.study.real_ranks),
    digests.MEASURE,
    graph.MEASURE,
    provenance.MEASURE,
    per_token.MEASURE,
    blame.MEASURE,
    summary.MEASURE,
)
"""All measures. The order of the list decides nothing: `needs` does."""


def summarise(study: Study, observed: Observed) -> Report:
    """The report of one run: calls every measure, in an order in which `needs` are there."""
    data: dict[type, Any] = {}
    for measure in _in_order():
        needed = {kind: data.get(kind) for kind in measure.needs}
        datum = measure.measure(Context(study, observed, needed))
        if datum is not None:
            data[measure.gives] = datum
    return Report.of(data.values())


@cache
def _in_order() -> tuple[Measure, ...]:
    of_type = {measure.gives: measure for measure in MEASURES}
    needs = {measure.gives: measure.needs for measure in MEASURES}
    return tuple(of_type[kind] for kind in TopologicalSorter(needs).static_order())


def searched(study: Study, observed: Observed, progress: Callback | None = None, store: Any = None) -> Observed:
    """`observed` with the answers of measures that search in passes of their own: shares and fixes, offsetting pairs,
    grafts.
    """
    searches = (measure.search for measure in MEASURES if measure.search is not None)
    answers = {search.name: search.search(study, observed, progress, store) for search in searches}
    return replace(observed, answers={name: answer for name, answer in answers.items() if answer is not None})


def codec(graph: Graph, *results: type) -> Codec:
    """A codec for what a pass saw of a graph, and for results of these classes."""
    return Codec(_classes(results), {node.name: node for node in graph.nodes})


@cache
def _classes(results: tuple[type, ...]) -> tuple[type, ...]:
    """The classes that a codec has to know; cached, since every piece of work asks for them."""
    return tuple(dict.fromkeys((*STATE, *_watched(), *(cls for result in results for cls in classes_of(result)))))


def _watched() -> Iterator[type]:
    for measure in MEASURES:
        if measure.watch is not None:
            yield from measure.watch.state
