"""What kernels take, in calls of small ones: no clock's measure, so that a search is the same on any machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from moeparity.numerics.gemm_forms import ALL
from moeparity.numerics.orders import NATIVE
from moeparity.ops.attention_forms import FLASH
from moeparity.plan.bound import BoundGraph
from moeparity.plan.graph import Node

NATIVELY: Final = 1 << 24
WRITTEN: Final = 1 << 16
"""Products that torch's own GEMMs, and sums that are written out, make while a small kernel is called."""
LOOPS: Final = 4
"""Turns of a loop over experts, pieces or tiles that take as long as a small kernel."""
PIECES: Final = ("splits", "blocks", "tensor", "expert", "channels")
"""Attributes that say into how many pieces a node is cut."""


def rewriting_price(node: Node) -> float:
    """What it takes to make a node's weights anew."""
    return sum(math.prod(ref.shape) * ref.count for ref in node.weights.values()) / NATIVELY


def call_price(plan: BoundGraph, node: Node, rows: int, length: int) -> float:
    """What a call takes on so many rows, of sequences of a `length`: its products, and its loops in Python."""
    numbers = {name: value for name, value in plan.active(node).items() if not isinstance(value, str)}
    each = [ref.count for ref in node.weights.values() if ref.each]
    products = rows * sum(math.prod(ref.shape) for ref in node.weights.values()) if node.op.gemm else 0
    pieces = max([1.0, *(numbers[name] for name in PIECES if name in numbers)])
    loops = max(each, default=1) * pieces * _tiles(plan.active(node), rows, length)
    return 1 + (loops - 1) / LOOPS + products / (WRITTEN if _written(plan, node) else NATIVELY)


def _tiles(active: Mapping[str, Any], rows: int, length: int) -> float:
    """How many tiles of keys an online softmax goes through, one after the other: of queries that are taken block by
    block only those that they see, half of them.
    """
    if active.get("implementation") != FLASH:
        return 1.0
    tiles = max(1.0, length / int(min(active["kv_block"], active.get("split_keys", length))))
    if active["rows"] != ALL:
        return rows / length * math.ceil(length / int(active["rows"])) * max(1.0, tiles / 2)
    return math.ceil(length / int(active["q_block"])) * max(1.0, tiles / 2) if "q_block" in active else tiles


def _written(plan: BoundGraph, node: Node) -> bool:
    """Whether a sum is added up in an order that is written out, product by product."""
    active = plan.active(node)
    natively = (attribute for attribute in node.op.attributes if attribute.order and attribute.default == NATIVE)
    return any(active.get(attribute.name, NATIVE) != NATIVE for attribute in natively)
