"""What a server's forwards show of attention: each request by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from moeparity.evidence.alignment.streams import by_pass, streams
from moeparity.evidence.alignment.tokens import Sequence as Part
from moeparity.evidence.alignment.tokens import Tokens
from moeparity.evidence.explain.observation import Observation
from moeparity.evidence.maps.forwards import Forward
from moeparity.plan.graph import Graph
from moeparity.plan.schedule.cases import Sizes

MASK, POSITIONS = "mask", "positions"
CACHED: Final = "Its first keys come from a prefix cache, and a trace does not say of which request they are."


def by_request(
    ways: Sequence[Forward], steps: Sequence[tuple[Observation, Sizes]], graph: Graph
) -> list[tuple[Observation, Sizes]]:
    """Each request's tokens of each step as a sequence that goes on its earlier ones. What reads a prefix cache has no
    mask: a trace does not say whose keys the cache held.
    """
    axes = {value: node.op.tokens.axis for node in graph.nodes for value in node.values}
    runs: dict[int, list[Observation]] = {}
    every = []
    passes = [way.tokens for way in ways]
    for (step, sizes), parts in zip(steps, by_pass(streams(passes), len(passes)), strict=True):
        for run, part in parts:
            before = runs.get(run, None if part.start else [])
            values = _rows(step.values, part, axes)
            if before is not None:
                values[MASK] = torch.ones(1, len(part.places), dtype=torch.bool)
            alone = Tokens((1, len(part.places)), (replace(part, places=tuple(range(len(part.places)))),))
            observation = replace(
                step, values=values, real=None, tokens=alone, earlier=tuple(before or ()),
                unknown=CACHED if before is None else "",
            )  # fmt: skip
            if before is not None:
                runs[run] = [*before, observation]
            keys = part.start + len(part.places)
            every.append((observation, sizes._replace(keys=keys, queries=len(part.places))))
    return every


def _rows(values: Mapping[str, Tensor], part: Part, axes: Mapping[str, int]) -> dict[str, Tensor]:
    """The rows of one request of every value that has all rows of its step."""
    rows = values["tokens"].shape[1]
    return {
        name: value.narrow(axes.get(name, 1), part.places[0], len(part.places)).contiguous()
        for name, value in values.items()
        if value.dim() > axes.get(name, 1) and value.shape[axes.get(name, 1)] == rows
    }
