"""Exact sums of floats: the result does not depend on the order or grouping of the terms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Self, TypeVar

T = TypeVar("T")


class Exact(float):
    """A sum of fp64 numbers: as a float it is the correctly rounded sum, and it also keeps what that rounding cut off.

    Exact numbers add up exactly: any order and grouping of the same terms gives equal floats. All other operations act
    on the float. NaN and infinities come out as in a plain sum; a sum beyond the largest float is infinite.

    parts: floats that do not overlap and whose sum this is (Shewchuk, "Adaptive precision floating-point arithmetic",
    1997; Python's `math.fsum` keeps the same).
    """

    __slots__ = ("parts",)
    parts: tuple[float, ...]

    def __new__(cls, parts: float | Sequence[float] = ()) -> Self:
        """The sum of one number or of several."""
        summands: list[float] = []
        for number in (parts,) if isinstance(parts, int | float) else parts:
            _grow(summands, float(number))
        self = super().__new__(cls, math.fsum(summands))
        self.parts = tuple(summands)
        return self

    def __add__(self, other: float) -> Exact:
        return Exact((*self.parts, *(other.parts if isinstance(other, Exact) else (other,))))

    __radd__ = __add__

    def __reduce__(self) -> tuple[type[Exact], tuple[tuple[float, ...]]]:
        return Exact, (self.parts,)


def _grow(parts: list[float], number: float) -> None:
    """Add a number, in place, to parts that do not overlap; a number that is not finite replaces them all."""
    remainders = []
    for part in parts:
        total = number + part
        if not math.isfinite(total):
            parts[:] = [total]
            return
        larger, smaller = (number, part) if abs(number) >= abs(part) else (part, number)
        remainder = smaller - (total - larger)
        if remainder:
            remainders.append(remainder)
        number = total
    parts[:] = [*remainders, number] if number or not remainders else remainders


def summed(first: T, second: T, **others: object) -> T:
    """A dataclass each of whose fields is the sum of both fields, or one of `others`."""
    names = [field.name for field in fields(first) if field.name not in others]  # type: ignore[arg-type]
    sums = {name: getattr(first, name) + getattr(second, name) for name in names}
    return type(first)(**sums, **others)
