"""Views of two traces held against each other: by what they look at, and by which part of it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from moeparity.evidence.diff.compare import Comparer, Comparison
from moeparity.evidence.diff.side import Side
from moeparity.evidence.trace.digest import row_digests


def compare_views(comparer: Comparer, a: int, b: int) -> Comparison:
    """Compares two values by their ids. Views of one kind are equal if what they look at is, which is compared once.
    Weights that lie alike are compared by their rows in memory.

    If they are other parts of what may be one value, or lie otherwise, so that they can't be compared, the result says
    so. Raises TraceError for a trace that is damaged.
    """
    ours, theirs = comparer.a.value(a), comparer.b.value(b)
    alike = ours.dtype == theirs.dtype and ours.shape == theirs.shape
    of_one = same_part = False
    if ours.base is not None and theirs.base is not None:
        base, another = comparer.a.value(ours.base), comparer.b.value(theirs.base)
        of_one = alike and base.shape == another.shape
        same_part = of_one and ours.part_of(base) == theirs.part_of(another)
        if same_part:
            whole = compare_views(comparer, ours.base, theirs.base)
            covers = torch.Size(ours.shape).numel() == torch.Size(base.shape).numel()
            if whole.status == "equal" or (covers and whole.status != "unknown"):
                return whole
    comparison = comparer.compare(a, b)
    weights = alike and comparer.a.is_weight(a) and comparer.b.is_weight(b)
    if comparison.status != "unknown" or same_part or not (of_one or weights):
        return comparison
    return (_in_memory(comparer, a, b) if weights else None) or replace(comparison, other_part=True)


def _in_memory(comparer: Comparer, a: int, b: int) -> Comparison | None:
    """Two weights that lie alike, by their rows in memory; None where they do not, or these are not known."""
    ours, theirs = memory_rows(comparer.a, a), memory_rows(comparer.b, b)
    if not comparer.same_digests or ours is None or theirs is None:
        return None
    if comparer.a.value(a).steps != comparer.b.value(b).steps:
        return None
    differing = int((ours != theirs).sum())
    return Comparison(status="differ" if differing else "equal", rows=len(ours), differing=differing)


def memory_rows(side: Side, number: int) -> Tensor | None:
    """The digests of a value's rows as they lie in memory, int64 [rows]; None if they are not known.

    For a transposed view they are those of what it looks at.
    """
    value = side.value(number)
    if len(value.strides) != len(value.shape):
        return side.rows(number)
    order = sorted(range(len(value.shape)), key=lambda axis: -value.strides[axis])
    if order == sorted(order):
        return side.rows(number)
    tensor = side.tensor(number)
    if tensor is not None:
        return row_digests(tensor.permute(order).contiguous())
    shape, strides = (tuple(sizes[axis] for axis in order) for sizes in (value.shape, value.strides))
    return side.rows_of_view(replace(value, shape=shape, strides=strides))
