"""What each forward of a trace shows of a graph: its values, and which padding, positions and earlier keys its tokens
have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from moeparity.evidence.explain.observation import Observation
from moeparity.evidence.explain.served import MASK, POSITIONS, by_request
from moeparity.evidence.maps.continued import Context, contexts
from moeparity.evidence.maps.forwards import Forward, forwards, refuse_other_model
from moeparity.evidence.maps.module_map import ModuleMap
from moeparity.evidence.maps.values import ShownValues, shown_values
from moeparity.evidence.trace.reader import RankTrace
from moeparity.plan.graph import Graph
from moeparity.plan.schedule.cases import Case, Sizes, case_of
from moeparity.plan.schedule.steps import Phase


@dataclass(frozen=True, slots=True)
class Recorded:
    """The forwards of a trace, as steps with their sizes; `suppositions` is what is supposed of the program, in words.
    by_request: in a server, the same for attention.
    """

    steps: tuple[tuple[Observation, Sizes], ...]
    suppositions: tuple[str, ...]
    by_request: tuple[tuple[Observation, Sizes], ...] = ()

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases there are, in the order of their first steps."""
        return tuple(dict.fromkeys(sizes.phase for _, sizes in self.steps))

    def in_cases(self, cases: Sequence[Case]) -> tuple[Observation, ...]:
        """The steps in the cases that a plan was bound for."""
        return _in_cases(self.steps, cases)

    def for_attention(self, cases: Sequence[Case]) -> tuple[Observation, ...]:
        """The steps that attention is looked at in, in the cases that a plan was bound for."""
        return _in_cases(self.by_request or self.steps, cases)


def _in_cases(steps: Sequence[tuple[Observation, Sizes]], cases: Sequence[Case]) -> tuple[Observation, ...]:
    bound: dict[Observation, Observation] = {}
    for step, sizes in steps:
        earlier = tuple(bound[before] for before in step.earlier)
        bound[step] = replace(step, phase=case_of(cases, sizes) or sizes.phase, earlier=earlier)
    return tuple(bound.values())


def observed(trace: RankTrace, graph: Graph, module_map: ModuleMap) -> Recorded:
    """What each forward shows.

    Raises TraceError for a trace without forwards or of another model, SpecError for a map.
    """
    ways = forwards(trace, module_map)
    refuse_other_model(trace, module_map, graph, ways[0])
    at = contexts(ways)
    steps = in_steps(ways, at, [shown_values(trace, graph, module_map, way) for way in ways])
    if trace.contents.batches:
        suppositions: tuple[str, ...] = ("the rows of requests as the server laid them out",)
        return Recorded(tuple(steps), suppositions, tuple(by_request(ways, steps, graph)))
    return Recorded(tuple(steps), _suppositions(at))


def in_steps(
    ways: Sequence[Forward], at: Sequence[Context], shown: Sequence[ShownValues]
) -> list[tuple[Observation, Sizes]]:
    """Forwards as steps, each with all its rows, and with the sizes that choices may go by."""
    steps: list[tuple[Observation, Sizes]] = []
    for number, (way, context, values) in enumerate(zip(ways, at, shown, strict=True)):
        sources = {MASK: context.visible, POSITIONS: context.positions}
        step = Observation(
            values={**values.tensors, **{name: value for name, value in sources.items() if value is not None}},
            other_shapes=values.other_shapes,
            phase=context.phase,
            real=context.mask,
            earlier=tuple(steps[before][0] for before in context.earlier),
            number=number,
            tokens=way.tokens,
            unknown=context.unknown,
        )
        keys = way.tokens.keys
        sizes = Sizes(context.phase, way.tokens.count, longest=keys, keys=keys, queries=way.tokens.queries)
        steps.append((step, sizes))
    return steps


def _suppositions(contexts_of: Sequence[Context]) -> tuple[str, ...]:
    padding = all(context.has_mask or context.mask is None for context in contexts_of)
    words = ["padding as its attention masks have it" if padding else "that no token is padding"]
    words.append("that positions count on from one token to the next")
    if any(context.sequences is not None for context in contexts_of):
        words.append("that a sequence begins where they begin anew, and sees itself alone")
    if any(context.earlier for context in contexts_of):
        words.append("that row i of a forward goes on row i of those before it")
    return tuple(words)
