"""The section of a recorded candidate, from what the first pass and the grafts showed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from moeparity.bisection.divergence.report import Root
from moeparity.bisection.observed import Observed
from moeparity.bisection.plan import Plan
from moeparity.bisection.trace.report import GraftedRoutes, Segment, Traced
from moeparity.bisection.trace.search import Grafted
from moeparity.bisection.trace.words import trace_reading
from moeparity.errors import display_path
from moeparity.evidence.maps.side import RecordedSide
from moeparity.metrics.interval import token_mean
from moeparity.metrics.tokens import SequenceSums
from moeparity.plan.address import pattern
from moeparity.plan.graph import Graph
from moeparity.plan.schedule.steps import Step
from moeparity.plan.sides import CANDIDATE


def parts(plan: Plan, observed: Observed, report: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the trace showed; None where the candidate is none."""
    recorded = plan.recorded
    if recorded is None:
        return {"trace": None}
    graph = plan.model.graph
    unknown = [node.name for node in graph.nodes if not all(value in recorded.grafts for value in node.values)]
    # Log-probabilities are taken of the recorded logits.
    unknown = [name for name in unknown if name != graph.scores]
    grafted: Grafted | None = observed.answers.get("trace")
    whole = observed.logits.sums(CANDIDATE)
    segments = () if grafted is None else tuple(_segments(graph, grafted, whole, report["roots"]))
    routes = (
        ()
        if grafted is None
        else tuple(GraftedRoutes(forced=routes_forced, kl=_kl(sums)) for routes_forced, sums in grafted.routes)
    )
    walked = plan.walked(plan.reference).on(*plan.tokens.input_ids.shape)
    steps = [step for step in walked.steps if not step.filler]
    traced = Traced(
        folder=display_path(recorded.folder),
        program=recorded.program,
        forwards=forwards(recorded),
        others=recorded.others,
        tokens=recorded.tokens,
        real_tokens=int(plan.tokens.attention_mask.sum()),
        together=_together(recorded, steps),
        whole=recorded.whole,
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
    reading = trace_reading(traced, report["roots"], report["metrics"], sizes_recorded, grafts=plan.recipe.grafts)
    return {"trace": replace(traced, reading=tuple(reading))}


def _together(recorded: RecordedSide, steps: Sequence[Step]) -> bool:
    """Whether steps compute together what the program did. What it generated last it never read."""
    schedule = recorded.schedule
    read = len(schedule.steps) if schedule is not None else 0
    return schedule is not None and [step.spans for step in schedule.steps] == [step.spans for step in steps[:read]]


def _size(step: Step) -> tuple[int, int]:
    """Sequences and tokens that a step computes together."""
    dense = step.shape == "dense" and step.spans
    return (len(step.spans), step.spans[0].tokens) if dense else (1, step.tokens)


def forwards(recorded: RecordedSide) -> str:
    """A trace's forwards, as in `1 of [4, 16], 5 of [4, 1]`."""
    return _runs(recorded.forwards)


def _runs(sizes: Sequence[tuple[int, int]]) -> str:
    runs = [(size, len(list(alike))) for size, alike in groupby(sizes)]
    return ", ".join(f"{count} of [{size[0]}, {size[1]}]" for size, count in runs)


def _kl(sums: SequenceSums) -> float:
    return sums.mean("kl_candidate_reference")


def _segments(graph: Graph, grafted: Grafted, whole: SequenceSums, roots: Sequence[Root]) -> Iterator[Segment]:
    """One for each cut, and what is behind the last; the whole candidate is the end of that."""
    ends = [*grafted.cuts, (_behind(graph, grafted), whole)]
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


def _behind(graph: Graph, grafted: Grafted) -> str:
    """The name of what lies behind the last cut."""
    names = [segment.name for segment in graph.segments]
    last = grafted.cuts[-1][0].rpartition(" to ")[2] if grafted.cuts else None
    rest = names if last is None else names[names.index(last) + 1 :]
    return rest[0] if len(rest) == 1 else f"{rest[0]} to {rest[-1]}"
