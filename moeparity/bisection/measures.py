"""All parts of a report as they are measured: the one list of what observes passes and what is made of that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from graphlib import TopologicalSorter
from typing import Any, Final

from moeparity.bisection.arrival import measure as arrival
from moeparity.bisection.arrival.data import Arrival
from moeparity.bisection.blame import measure as blame
from moeparity.bisection.context import Context, Measure
from moeparity.bisection.degeneracy import measure as degeneracy
from moeparity.bisection.degeneracy.data import Degeneracy
from moeparity.bisection.determinism import measure as determinism
from moeparity.bisection.determinism.data import Determinism
from moeparity.bisection.digests import measure as digests
from moeparity.bisection.digests.data import Digests
from moeparity.bisection.distribution import measure as distribution
from moeparity.bisection.distribution.data import Distribution
from moeparity.bisection.divergence import measure as divergence
from moeparity.bisection.divergence.baseline import BASELINE
from moeparity.bisection.divergence.data import Divergence
from moeparity.bisection.divergence.observe import RECORDS
from moeparity.bisection.envelope import measure as envelope
from moeparity.bisection.envelope.data import Envelope
from moeparity.bisection.flips import measure as flips
from moeparity.bisection.flips.data import RoutingFlips
from moeparity.bisection.flips.observe import CENSUS
from moeparity.bisection.floor import measure as floor
from moeparity.bisection.floor.data import Floor
from moeparity.bisection.graph import measure as graph
from moeparity.bisection.graph.data import OpGraph
from moeparity.bisection.nearest import measure as nearest
from moeparity.bisection.nearest.data import NearestAnswers
from moeparity.bisection.nonfinite import measure as nonfinite
from moeparity.bisection.nonfinite.data import Nonfinite
from moeparity.bisection.observed import STATE, Observed
from moeparity.bisection.oracle import measure as oracle
from moeparity.bisection.oracle.data import Oracle
from moeparity.bisection.per_token import measure as per_token
from moeparity.bisection.per_token.data import PerToken
from moeparity.bisection.plan import Plan
from moeparity.bisection.provenance import measure as provenance
from moeparity.bisection.provenance.data import Provenance
from moeparity.bisection.real_ranks.data import RealRanks
from moeparity.bisection.record import measure as record
from moeparity.bisection.record.data import OtherRecord, Recording
from moeparity.bisection.record.observe import RECORDED, RECORDED_BY_OTHER
from moeparity.bisection.replay import measure as replay
from moeparity.bisection.replay.data import Replay
from moeparity.bisection.report import Report
from moeparity.bisection.resume.codec import Codec, classes_of
from moeparity.bisection.run import measure as run
from moeparity.bisection.run.data import RunFacts
from moeparity.bisection.schedule import measure as schedule
from moeparity.bisection.schedule.data import Schedule
from moeparity.bisection.shares import measure as shares
from moeparity.bisection.shares.data import Attribution
from moeparity.bisection.shares.search import SHARES
from moeparity.bisection.summary import measure as summary
from moeparity.bisection.summary.data import Summary
from moeparity.bisection.toggles import measure as toggles
from moeparity.bisection.toggles.data import Toggled
from moeparity.bisection.toggles.search import OFFSETTING
from moeparity.bisection.tokens import measure as tokens
from moeparity.bisection.tokens.data import OfTokens
from moeparity.bisection.trace import measure as trace
from moeparity.bisection.trace.data import Traced
from moeparity.bisection.trace.search import GRAFTED
from moeparity.bisection.verdict import measure as verdict
from moeparity.bisection.verdict.data import Verdicts
from moeparity.plan.graph import Graph
from moeparity.progress import Callback
from moeparity.search.blame import Blame

MEASURES: Final = (
    Measure(gives=RunFacts, measure=run.measure),
    Measure(gives=Recording, measure=record.measure, watch=RECORDED, trials=record.trials),
    Measure(
        gives=OtherRecord,
        measure=record.measure_other,
        watch=RECORDED_BY_OTHER,
        trials=record.other_trials,
    ),
    Measure(gives=Degeneracy, measure=degeneracy.measure, watch=degeneracy.FLAT),
    Measure(gives=Verdicts, measure=verdict.measure, needs=(Arrival, Degeneracy, Recording, OtherRecord)),
    Measure(gives=Divergence, measure=divergence.measure, watch=RECORDS, search=BASELINE),
    Measure(gives=RoutingFlips, measure=flips.measure, watch=CENSUS),
    Measure(gives=Toggled, measure=toggles.measure, search=OFFSETTING),
    Measure(gives=OfTokens, measure=tokens.measure, watch=tokens.CLASSES),
    Measure(gives=Distribution, measure=distribution.measure, watch=distribution.DISTRIBUTIONS),
    Measure(gives=Floor, measure=floor.measure, needs=(Verdicts,), trials=floor.trials),
    Measure(gives=Oracle, measure=oracle.measure, needs=(Verdicts,), watch=oracle.TRUTH),
    Measure(gives=Arrival, measure=arrival.measure, trials=arrival.trials),
    Measure(gives=Replay, measure=replay.measure, trials=replay.trials),
    Measure(gives=Envelope, measure=envelope.measure, watch=envelope.BANDS),
    Measure(gives=Attribution, measure=shares.measure, search=SHARES),
    Measure(gives=Determinism, measure=determinism.measure, watch=determinism.REPEATED),
    Measure(gives=NearestAnswers, measure=nearest.measure, needs=(Determinism,), watch=nearest.NEAREST),
    Measure(gives=Nonfinite, measure=nonfinite.measure, needs=(Verdicts,), watch=nonfinite.OCCURRENCES),
    Measure(gives=Schedule, measure=schedule.measure),
    Measure(gives=Traced, measure=trace.measure, needs=(Divergence, Verdicts), search=GRAFTED),
    Measure(gives=RealRanks, measure=lambda of: of.plan.real_ranks),
    Measure(gives=Digests, measure=digests.measure, watch=digests.NODE_DIGESTS),
    Measure(gives=OpGraph, measure=graph.measure),
    Measure(gives=Provenance, measure=provenance.measure),
    Measure(gives=PerToken, measure=per_token.measure, watch=per_token.TOKEN_VALUES),
    Measure(
        gives=Blame,
        measure=blame.measure,
        needs=(Verdicts, Recording, OtherRecord, Toggled, Attribution, Nonfinite, Traced),
    ),
    Measure(
        gives=Summary,
        measure=summary.measure,
        needs=(Blame, Verdicts, Recording, OtherRecord, Divergence, Toggled, Floor, Degeneracy, Nonfinite, Traced),
    ),
)
"""All measures. The order of the list decides nothing: `needs` does."""


def summarise(plan: Plan, observed: Observed) -> Report:
    """The report of one run: calls every measure, in an order in which `needs` are there."""
    data: dict[type, Any] = {}
    for measure in _in_order():
        needed = {kind: data.get(kind) for kind in measure.needs}
        datum = measure.measure(Context(plan, observed, needed))
        if datum is not None:
            data[measure.gives] = datum
    return Report.of(data.values())


@cache
def _in_order() -> tuple[Measure, ...]:
    of_type = {measure.gives: measure for measure in MEASURES}
    needs = {measure.gives: measure.needs for measure in MEASURES}
    return tuple(of_type[kind] for kind in TopologicalSorter(needs).static_order())


def searched(plan: Plan, observed: Observed, progress: Callback | None = None, store: Any = None) -> Observed:
    """`observed` with the answers of measures that search in passes of their own: shares and fixes, offsetting pairs,
    grafts.
    """
    searches = (measure.search for measure in MEASURES if measure.search is not None)
    answers = {search.name: search.search(plan, observed, progress, store) for search in searches}
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
