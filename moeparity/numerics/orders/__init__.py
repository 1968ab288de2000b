"""Summation orders: their names, how they are written, and the tree of each over n leaves. No torch here."""

from moeparity.numerics.orders.build import tree
from moeparity.numerics.orders.parser import parse
from moeparity.numerics.orders.types import (
    EXPLICIT,
    FORMS,
    NATIVE,
    AnyTree,
    Level,
    Order,
    OrderError,
    Sum,
    Tree,
    leaves_of,
)

__all__ = [
    "EXPLICIT",
    "FORMS",
    "NATIVE",
    "AnyTree",
    "Level",
    "Order",
    "OrderError",
    "Sum",
    "Tree",
    "leaves_of",
    "parse",
    "tree",
]
