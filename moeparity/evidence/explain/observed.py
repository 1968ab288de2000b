"""What each forward of a trace shows of a graph: its values, and which padding, positions and earlier keys its tokens
have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from moeparity.evidence.explain.observation import Observation
from moeparity.evidence.explain.served import MASK, POSITIONS, by_request, together
from moeparity.evidence.maps.continued import Context, contexts
from moeparity.evidence.maps.forwards import Forward, forwards, refuse_other_model
from moeparity.evidence.maps.module_map import ModuleMap
from moeparity.evidence.maps.values import shown_values
from moeparity.evidence.trace.reader import RankTrace
from moeparity.plan.graph import Graph
from moeparity.plan.schedule.cases import Case, Sizes, case_of
from moeparity.plan.schedule.steps import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
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
    if trace.contents.batches:
        together_steps = together(ways, [shown_values(trace, graph, module_map, way) for way in ways])
        return Recorded(
            steps=tuple(together_steps),
            suppositions=("the rows of requests as the server laid them out",),
            by_request=tuple(by_request(ways, together_steps, graph)),
        )
    at = contexts(trace, module_map, ways)
    steps: list[Observation] = []
    for number, (way, context) in enumerate(zip(ways, at, strict=True)):
        shown = shown_values(trace, graph, module_map, way)
        sources = {MASK: context.visible, POSITIONS: context.positions}
        steps.append(
            Observation(
                values={**shown.tensors, **{name: value for name, value in sources.items() if value is not None}},
                other_shapes=shown.other_shapes,
                phase=context.phase,
                real=context.mask,
                earlier=tuple(steps[before] for before in context.earlier),
                number=number,
                sequences=context.sequences,
                unknown=context.unknown,
            )
        )
    sizes = tuple(_sizes(way, context, at) for way, context in zip(ways, at, strict=True))
    return Recorded(steps=tuple(zip(steps, sizes, strict=True)), suppositions=_suppositions(at))


def _sizes(way: Forward, context: Context, every: Sequence[Context]) -> Sizes:
    """What choices may go by; of a flat forward of servers all rows are taken for one sequence."""
    sequences, length = way.ids.shape
    before = (every[number].mask for number in context.earlier)
    keys = length + sum(mask.shape[1] for mask in before if mask is not None)
    return Sizes(context.phase, sequences * length, longest=keys, keys=keys, queries=length)


def _suppositions(contexts_of: Sequence[Context]) -> tuple[str, ...]:
    padding = all(context.has_mask or context.mask is None for context in contexts_of)
    words = ["padding as its attention masks have it" if padding else "that no token is padding"]
    words.append("that positions count on from one token to the next")
    if any(context.sequences is not None for context in contexts_of):
        words.append("that a sequence begins where they begin anew, and sees itself alone")
    if any(context.earlier for context in contexts_of):
        words.append("that row i of a forward goes on row i of those before it")
    return tuple(words)
