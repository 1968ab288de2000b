"""Sides of a case that are run alone: every walk has one walker, and its values are held whole.

Nothing here goes by identities, waves, shadows or trials.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.planted_faults.cases import Case
from moeparity.bisection.options import Options
from moeparity.bisection.prepare import prepare
from moeparity.bisection.study import Study
from moeparity.engine.lockstep import run
from moeparity.engine.view import NodeView
from moeparity.engine.walker import Walker
from moeparity.inputs.model import Model
from moeparity.plan.graph import SOURCES, Node
from moeparity.plan.sides import REFERENCE, micro_batches


@dataclass(slots=True)
class Walk:
    """One side that ran alone: every value [B, ...] by name, and by node which of its inputs were read."""

    study: Study
    side: str
    values: dict[str, list[Tensor]] = field(default_factory=dict)
    reads: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if not view.ran(self.side):
            return
        for port, name in enumerate(view.node.values):
            self.values.setdefault(name, []).append(view.tensor(self.side, port).clone())
        region = (self.study.reference if self.side == REFERENCE else self.study.candidate).plan.region(view.node.name)
        read = [n for n, b in zip(view.node.inputs, view.inputs[self.side], strict=False) if b is not None]
        names = read if region is None else region.inputs
        self.reads[view.node.name] = tuple(name for name in names if name not in SOURCES)

    def value(self, name: str) -> Tensor:
        """A value of all sequences."""
        return torch.cat(self.values[name])


@dataclass(slots=True)
class Runs:
    """Sides of cases on the same tokens, run alone, each once. `write` makes a recipe of a case and settings on top."""

    folder: Path
    write: Callable[[Case, Path, Mapping[str, Any]], Path]
    opener: Callable[..., Model]
    finished: dict[str, Walk] = field(default_factory=dict)

    def walk(
        self,
        case: Case,
        side: str,
        settings: Mapping[str, Any] | None = None,
        params: Mapping[tuple[str, str], Any] | None = None,
        faults: Sequence[Mapping[str, Any]] = (),
    ) -> Walk:
        """One side of a case, with further settings, with other parameters of nodes, by node and name, and with faults
        as a recipe states them.
        """
        path = self.write(case, self.folder, settings or {})
        recipe = json.loads(path.read_text("utf-8"))
        if faults:
            recipe[side]["faults"] = list(faults)
            path.write_text(json.dumps(recipe), "utf-8")
        key = json.dumps([recipe["checkpoint"], recipe[side], *sorted(map(str, (params or {}).items()))])
        if key not in self.finished:
            self.finished[key] = _walk(path, side, partial(_changed, self.opener, params) if params else self.opener)
        return self.finished[key]


def _changed(opener: Callable[..., Model], params: Mapping[tuple[str, str], Any], folder: Path, **more: Any) -> Model:
    """A checkpoint whose nodes have other parameters; of rope's, one within `rope`."""
    model = opener(folder, **more)

    def changed(node: Node) -> Node:
        of_node = dict(node.params)
        for (name, parameter), value in params.items():
            if name == node.name and parameter in of_node:
                of_node[parameter] = value
            elif name == node.name:
                of_node["rope"] = {**of_node["rope"], parameter: value}
        return replace(node, params=of_node)

    segments = tuple(replace(s, nodes=tuple(map(changed, s.nodes))) for s in model.graph.segments)
    weights = copy.copy(model.weights)
    weights.graph = replace(model.graph, segments=segments)
    return replace(model, graph=weights.graph, weights=weights)


def _walk(path: Path, side: str, opener: Callable[..., Model]) -> Walk:
    study = prepare(path, device="cpu", options=Options(allow_code=True, attribution=False), opener=opener)
    side_plan = study.reference if side == REFERENCE else study.candidate
    walker = Walker(name=side, plan=side_plan.plan, schedule=micro_batches(side_plan), functions=study.functions)
    values = Walk(study, side)
    ids, mask, _ = study.tokens_on_device
    run([walker], study.model.weights, ids, [values], attention_mask=mask)
    return values


_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have one dtype and the same bits."""
    return a.dtype == b.dtype and a.shape == b.shape and not bool(differing(a, b).any())


def differing(a: Tensor, b: Tensor) -> Tensor:
    """Of values of one shape, which elements differ; all of them where dtypes do."""
    if a.dtype != b.dtype:
        return torch.ones(a.shape, dtype=torch.bool)
    if not a.is_floating_point():
        return a != b
    kind = _BITS[a.element_size()]
    return a.contiguous().view(kind) != b.contiguous().view(kind)
