"""What a server's forwards show: all rows of a step together, and for attention each request by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from moeparity.evidence.explain.observation import Observation
from moeparity.evidence.maps.forwards import Forward
from moeparity.evidence.maps.requests import Part, parts_of
from moeparity.evidence.maps.values import ShownValues
from moeparity.plan.graph import Graph
from moeparity.plan.schedule.cases import Sizes
from moeparity.plan.schedule.recorded import phase_of
from moeparity.plan.schedule.steps import Span

MASK, POSITIONS = "mask", "positions"
BEHIND_EACH_OTHER: Final = "Several requests stand behind each other in a step; attention is looked at by request."
CACHED: Final = "Its first keys come from a prefix cache, and a trace does not say of which request they are."


def together(ways: Sequence[Forward], shown: Sequence[ShownValues]) -> list[tuple[Observation, Sizes]]:
    """Each step with all its rows as one sequence, of which attention can't be computed anew."""
    begun = set[int]()
    steps = []
    for number, (way, values, parts) in enumerate(zip(ways, shown, parts_of(ways), strict=True)):
        spans = tuple(Span(part.run, part.first, part.first + part.tokens) for part in parts)
        rows = way.ids.numel()
        real = torch.arange(rows)[None] < sum(span.tokens for span in spans)
        positions = torch.zeros_like(way.ids)
        positions[real] = torch.cat([torch.arange(span.first, span.last) for span in spans])
        keys = max(span.last for span in spans)
        sizes = Sizes(phase_of(spans, begun), rows, longest=keys, keys=keys, queries=max(span.tokens for span in spans))
        step = Observation(
            values={**values.tensors, POSITIONS: positions},
            other_shapes=values.other_shapes,
            phase=sizes.phase,
            real=real,
            number=number,
            ends=torch.tensor(way.ends),
            requests=tuple((part.request, part.first + token) for part in parts for token in range(part.tokens)),
            unknown=BEHIND_EACH_OTHER,
        )
        steps.append((step, sizes))
        begun.update(span.sequence for span in spans)
    return steps


def by_request(
    ways: Sequence[Forward], steps: Sequence[tuple[Observation, Sizes]], graph: Graph
) -> list[tuple[Observation, Sizes]]:
    """Each request's tokens of each step as a sequence that goes on its earlier ones. What reads a prefix cache has no
    mask: a trace does not say whose keys the cache held.
    """
    axes = {value: node.op.token_axis for node in graph.nodes for value in node.values}
    runs: dict[int, list[Observation]] = {}
    every = []
    for (step, sizes), parts in zip(steps, parts_of(ways), strict=True):
        for part in parts:
            before = runs.get(part.run, None if part.first else [])
            values = _rows(step.values, part, axes)
            if before is not None:
                values[MASK] = torch.ones(1, part.tokens, dtype=torch.bool)
            unknown = CACHED if before is None else ""
            alone = replace(
                step, values=values, real=None, ends=None, earlier=tuple(before or ()), unknown=unknown, row=part.row
            )
            if before is not None:
                runs[part.run] = [*before, alone]
            every.append((alone, sizes._replace(keys=part.first + part.tokens, queries=part.tokens)))
    return every


def _rows(values: Mapping[str, Tensor], part: Part, axes: Mapping[str, int]) -> dict[str, Tensor]:
    """The rows of one request of every value that has all rows of its step."""
    rows = values["tokens"].shape[1]
    return {
        name: value.narrow(axes.get(name, 1), part.row, part.tokens).contiguous()
        for name, value in values.items()
        if value.dim() > axes.get(name, 1) and value.shape[axes.get(name, 1)] == rows
    }
