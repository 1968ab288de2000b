"""The shapes of a plan's GEMMs for which cuBLASLt is asked."""

from __future__ import annotations

from collections.abc import Iterable

from moeparity.numerics.tensor_core.planned_order import Shape
from moeparity.ops.linear import ROW, way
from moeparity.ops.placement import cut
from moeparity.plan.bound import Plan
from moeparity.plan.gpu import PLANNED
from moeparity.plan.graph import Node

_HALF = ("bf16", "fp16")
KV_B = "kv_b"
"""Of `mla_expand`, a weight and the site of its GEMM."""


def gemm_shapes(plans: Iterable[Plan]) -> tuple[Shape, ...]:
    """Each shape of the 16-bit GEMMs without a bias in `linear`, `gate`, `lm_head` and `mla_expand`, of one rank where
    ranks share them.
    """
    every = (phase for plan in plans for phase in plan.distinct)
    shapes = (_shape(plan, node) for plan in every for node in plan.nodes_as_run if node.op.name in PLANNED)
    return tuple(sorted({shape for shape in shapes if shape is not None}))


def _shape(plan: Plan, node: Node) -> Shape | None:
    values = plan.active(node)
    if KV_B in values:
        (n, k), dtype = node.weights[KV_B].shape, str(values[KV_B])
        return (n // cut(values), k, dtype, dtype) if dtype in _HALF else None
    inputs = str(values["inputs"])
    if inputs not in _HALF or "bias" in node.weights:
        return None
    n, k = node.weights["weight"].shape
    by_row = "parallel" in values and way(values, node.params) == ROW
    pieces = cut(values)
    n, k = (n, k // pieces) if by_row else (n // pieces, k)
    return n, k, inputs, str(values.get("output", values.get("partial")))
