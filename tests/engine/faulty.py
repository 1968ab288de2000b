"""Plans with faults, run beside each other in one pass, and what every node of each computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moeparity.engine.lockstep import Counts, run
from moeparity.engine.view import NodeView
from moeparity.engine.walker import Walker
from moeparity.errors import Where
from moeparity.inputs.model import Model
from moeparity.plan.bound import Plan
from moeparity.plan.engine_profile import load_profile
from moeparity.plan.schedule.steps import MicroBatches, Schedule
from moeparity.plan.sides import bound_side
from moeparity.plan.spec.variant_schema import StatedFault, Variant

WHERE = Where(Path("test"))
Values = dict[str, Tensor]
"""What every node computes, by the names of its values."""


def fault(
    name: str, nodes: str | None = None, layers: list[int] | None = None, values: Mapping[str, Any] | None = None
) -> StatedFault:
    """As a recipe states it."""
    return StatedFault(name=name, nodes=nodes, layers=layers, values=dict(values or {}))


def plan_of(model: Model, faults: Sequence[StatedFault] = (), profile: str = "hf-eager") -> Plan:
    variant = Variant(profile=profile, faults=list(faults))
    return bound_side(model.graph, variant, load_profile(profile, WHERE), model.dtype, WHERE).plan


@dataclass
class Recorder:
    """Keeps every value of every walker."""

    names: Sequence[str]
    values: dict[str, dict[str, list[Tensor]]] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        for name in self.names:
            for port, value in enumerate(view.node.values):
                self.values.setdefault(name, {}).setdefault(value, []).append(view.tensor(name, port))

    def result(self, name: str) -> Values:
        return {value: torch.cat(parts) for value, parts in self.values[name].items()}


def walk(
    model: Model,
    plans: Mapping[str, Plan],
    ids: Tensor,
    *,
    mask: Tensor | None = None,
    schedule: Schedule | MicroBatches = MicroBatches(2),  # noqa: B008  (it is frozen)
) -> tuple[dict[str, Values], Counts]:
    """What each plan computes at every node, all of them in one pass, and what that cost."""
    recorder = Recorder(list(plans))
    walkers = [Walker(name=name, plan=plan, schedule=schedule) for name, plan in plans.items()]
    counts = run(walkers, model.weights, ids, [recorder], attention_mask=mask)
    return {name: recorder.result(name) for name in plans}, counts
