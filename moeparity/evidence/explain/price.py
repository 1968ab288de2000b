"""What kernels take, in calls of small ones: no clock's measure, so that a search is the same on any machine."""

from __future__ import annotations

import math
from typing import Final

from moeparity.numerics.gemm_forms import ONEDNN
from moeparity.numerics.orders import NATIVE
from moeparity.plan.bound import Plan
from moeparity.plan.graph import Node

NATIVELY: Final = 1 << 24
WRITTEN: Final = 1 << 16
"""Products that torch's own GEMMs, and sums that are written out, make while a small kernel is called."""
LOOPS: Final = 4
"""Turns of a loop over experts, pieces or tiles that take as long as a small kernel."""


def rewriting_price(node: Node) -> float:
    """What it takes to make a node's weights anew."""
    return sum(math.prod(ref.shape) * ref.count for ref in node.weights.values()) / NATIVELY


def call_price(plan: Plan, node: Node, rows: int, length: int) -> float:
    """What a call takes on so many rows, of sequences of a `length`: its products, and its loops in Python."""
    each = [ref.count for ref in node.weights.values() if ref.each]
    products = rows * sum(math.prod(ref.shape) for ref in node.weights.values()) if node.op.role.gemm else 0
    loops = max(each, default=1) * node.op.cut.turns(plan.active(node), rows, length)
    return 1 + (loops - 1) / LOOPS + products / (WRITTEN if _written(plan, node) else NATIVELY)


def _written(plan: Plan, node: Node) -> bool:
    """Whether a sum is added up in an order that is written out, product by product."""
    active = plan.active(node)
    natively = (attribute for attribute in node.op.attributes if attribute.order and attribute.default == NATIVE)
    return any(active.get(attribute.name, NATIVE) not in (NATIVE, ONEDNN) for attribute in natively)
