"""How to call a side's kernels outside of a pass: its settings, and its weights, read again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from moeparity.bisection.study import Study
from moeparity.inputs.weights.loaded import asks_for
from moeparity.plan.graph import Node
from moeparity.plan.schedule.cases import Case
from moeparity.plan.sides import Side


@dataclass(frozen=True, slots=True, kw_only=True)
class SideKernels:
    """How one side's kernels are called: for a node, `at` gives the settings as its kernel takes them, `weights` reads
    its weights, `node` gives the node as the side runs it (with its faults).
    """

    at: Callable[[Node], Mapping[str, Any]]
    weights: Callable[[Node], Mapping[str, Tensor]]
    node: Callable[[Node], Node]


def settings_of(study: Study, side: Side, phase: Case) -> SideKernels:
    """How a side's kernels are called outside of a pass, in a phase of its plan."""
    bound = side.plan.at_phase(phase)

    def weights(node: Node) -> Mapping[str, Tensor]:
        as_run = bound.as_run(node)
        return study.model.weights.node(as_run, bound.dtype_of(node.name), asks_for(as_run, bound.active(node)))

    return SideKernels(
        at=lambda node: node.op.settings({**bound.told_to(node), **bound.active(node)}),
        weights=weights,
        node=bound.as_run,
    )
