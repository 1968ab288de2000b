"""The section of a recorded candidate, from the first pass and the grafts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from moeparity.bisection.context import Context, Measure, filled
from moeparity.bisection.divergence.data import Divergence, Root
from moeparity.bisection.trace.data import GraftedRoutes, Segment, Traced
from moeparity.bisection.trace.search import GRAFTED, Grafted
from moeparity.bisection.trace.show import trace_reading
from moeparity.bisection.verdict.data import Verdicts
from moeparity.errors import display_path
from moeparity.evidence.maps.side import RecordedSide
from moeparity.metrics.interval import token_mean
from moeparity.metrics.tokens import SequenceSums
from moeparity.plan.address import pattern
from moeparity.plan.graph import Graph
from moeparity.plan.schedule.steps import Step
from moeparity.plan.sides import CANDIDATE


def measure(of: Context) -> Traced | None:
    """What the trace shows; None if the candidate is not a trace."""
    study, observed, recorded = of.study, of.observed, of.study.recorded
    if recorded is None:
        return None
    graph = study.model.graph
    unknown = [node.name for node in graph.nodes if not all(value in recorded.grafts for value in node.values)]
    # Log-probabilities are computed from the recorded logits, so their node is not unknown.
    unknown = [name for name in unknown if name != graph.scores]
    grafted, roots = observed.of_search(GRAFTED), of[Divergence].roots
    whole = observed.logits.sums(CANDIDATE)
    segments = () if grafted is None else tuple(_segments(graph, grafted, whole, roots))
    routes = (
        ()
        if grafted is None
        else tuple(GraftedRoutes(forced=routes_forced, kl=_kl(sums)) for routes_forced, sums in grafted.routes)
    )
    walked = study.walked(study.reference).on(*study.tokens.input_ids.shape)
    steps = [step for step in walked.steps if not step.filler]
    traced = filled(
        Traced,
        recorded,
        folder=display_path(recorded.folder),
        forwards=forwards(recorded),
        real_tokens=int(study.tokens.attention_mask.sum()),
        together=_together(recorded, steps),
        logits=graph.output in recorded.grafts,
        shown=len(graph.nodes) - len(unknown),
        nodes=len(graph.nodes),
        weights=recorded.weights.compared,
        other_weights=recorded.weights.others,
        unknown=pattern(unknown),
        segments=segments,
        routes=routes,
        reading=(),
    )
    sizes_recorded = None if recorded.schedule is None else _runs([_size(step) for step in steps])
    reading = trace_reading(
        traced, roots, of[Divergence].subtracted, of[Verdicts].metrics, sizes_recorded, grafts=study.recipe.grafts
    )
    return replace(traced, reading=tuple(reading))


def _together(recorded: RecordedSide, steps: Sequence[Step]) -> bool:
    """Whether these steps compute the same tokens together as the program did, which never read its last generated
    token.
    """
    schedule = recorded.schedule
    read = len(schedule.steps) if schedule is not None else 0
    return schedule is not None and [step.spans for step in schedule.steps] == [step.spans for step in steps[:read]]


def _size(step: Step) -> tuple[int, int]:
    """How many sequences and tokens a step computes together."""
    dense = step.shape == "dense" and step.spans
    return (len(step.spans), step.spans[0].tokens) if dense else (1, step.tokens)


def forwards(recorded: RecordedSide) -> str:
    """A trace's forward passes in words, such as `1 of [4, 16], 5 of [4, 1]`."""
    return _runs(recorded.forwards)


def _runs(sizes: Sequence[tuple[int, int]]) -> str:
    runs = [(size, len(list(alike))) for size, alike in groupby(sizes)]
    return ", ".join(f"{count} of [{size[0]}, {size[1]}]" for size, count in runs)


def _kl(sums: SequenceSums) -> float:
    return sums.mean("kl_candidate_reference")


def _segments(graph: Graph, grafted: Grafted, whole: SequenceSums, roots: Sequence[Root]) -> Iterator[Segment]:
    """A segment up to each cut, and one after the last cut, which ends with the whole candidate."""
    ends = [*grafted.cuts, (_after_last_cut(graph, grafted), whole)]
    segment_of = {node.name: segment.name for segment in graph.segments for node in segment.nodes}
    order = [segment.name for segment in graph.segments]
    before: SequenceSums | None = None
    for name, sums in ends:
        first, _, last = name.partition(" to ")
        inside = order[order.index(first) : order.index(last or first) + 1]
        earlier = 0.0 if before is None else before.kl_candidate_reference
        segment_mean = token_mean(sums.kl_candidate_reference - earlier, sums.tokens)
        yield Segment(
            name=name,
            kl=_kl(sums),
            made=segment_mean.estimate,
            low=segment_mean.low,
            high=segment_mean.high,
            roots=sum(segment_of[root.node] in inside for root in roots),
        )
        before = sums


def _after_last_cut(graph: Graph, grafted: Grafted) -> str:
    """The name of the segment after the last cut."""
    names = [segment.name for segment in graph.segments]
    last = grafted.cuts[-1][0].rpartition(" to ")[2] if grafted.cuts else None
    rest = names if last is None else names[names.index(last) + 1 :]
    return rest[0] if len(rest) == 1 else f"{rest[0]} to {rest[-1]}"


MEASURE = Measure(gives=Traced, measure=measure, needs=(Divergence, Verdicts), search=GRAFTED)
