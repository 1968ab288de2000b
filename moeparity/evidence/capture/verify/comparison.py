"""Two values, one recorded and one of now: equal, different, or not to be told."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from moeparity.evidence.trace.records import Value


@dataclass(frozen=True, slots=True)
class Tolerance:
    """By how much numbers may differ: a part of the recorded number, and an amount. Zero of both: bits count.

    It holds for each element where both sides have the whole value, else for statistics, which are no bound of the
    elements: a tensor whose rows lie in another order has the same.
    """

    relative: float = 0.0
    absolute: float = 0.0

    def __bool__(self) -> bool:
        return self.relative > 0 or self.absolute > 0


Whole = Callable[[Value, Value], bool | None]
"""Whether two values lie within a tolerance, element by element; None where one is not whole."""


def same(
    recorded: Value,
    present: Value,
    bases: tuple[Value | None, Value | None],
    tolerance: Tolerance,
    whole: Whole | None = None,
) -> bool | None:
    """Whether two values are equal; None where that can't be told, as of what was written in part.

    `whole` is asked first where bits differ and there is a tolerance; then statistics are compared. `bases`: the values
    that they are views of. A view has no digest: it is equal where its base is and it looks at the same part, and where
    its base is not, nothing is known of that part.
    """
    if (recorded.dtype, recorded.shape) != (present.dtype, present.shape):
        return False
    if recorded.label == present.label == "unwritten":
        return True
    if recorded.label in ("unwritten", "partly") or present.label in ("unwritten", "partly"):
        return None
    left, right = bases
    if left is None and right is None:
        return _equal(recorded, present, tolerance, whole)
    if left is None or right is None:
        return None
    if left.shape == right.shape and left.dtype == right.dtype and recorded.part_of(left) == present.part_of(right):
        return _equal(left, right, tolerance, whole) or (False if _is_whole(recorded, left) else None)
    return None


def _equal(recorded: Value, present: Value, tolerance: Tolerance, whole: Whole | None) -> bool | None:
    if recorded.digest is None or present.digest is None:
        return None
    if recorded.digest == present.digest:
        return True
    if not tolerance:
        return False
    elements = None if whole is None else whole(recorded, present)
    if elements is not None:
        return elements
    if recorded.stats is None or present.stats is None:
        return False
    return _near(recorded.stats, present.stats, tolerance)


def _near(recorded: Mapping[str, float], present: Mapping[str, float], tolerance: Tolerance) -> bool:
    if recorded.keys() != present.keys():
        return False
    for name, number in recorded.items():
        if name in ("nan", "inf"):
            if number != present[name]:
                return False
        elif abs(present[name] - number) > tolerance.absolute + tolerance.relative * abs(number):
            return False
    return True


def near(recorded: torch.Tensor, present: torch.Tensor, tolerance: Tolerance) -> bool:
    """Whether each element lies within the tolerance; a NaN or an infinity only where the recorded has it too."""
    wide = torch.complex128 if recorded.is_complex() else torch.float64
    return torch.allclose(
        present.to(wide), recorded.to(wide), rtol=tolerance.relative, atol=tolerance.absolute, equal_nan=True
    )


def _is_whole(value: Value, base: Value) -> bool:
    return math.prod(value.shape) == math.prod(base.shape)
