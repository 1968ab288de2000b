"""What is said of choices that were tried: what they give against what was to be explained."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberRange:
    """Which numbers were seen to do the same at a `node:attribute`: all bits equal at both ends."""

    place: str
    least: float
    greatest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceMatch:
    """Known choices, with what they give on the inputs that were met, against what was to be explained.

    choices: as `node:attribute=value`; of a number of the model, such as a scale, `node:parameter=value`.
    equal: share of elements with equal values; exact: every bit and the dtype are equal. compared: the share of the
    elements that this was looked at on.
    mean_ulp: mean distance in ulps of the coarser dtype; infinite where a value is not finite.
    between: where an exact choice is a number of which others do as well.
    faults: what those of the choices mean that are faults, as sentences say it.
    """

    choices: tuple[str, ...]
    equal: float
    mean_ulp: float
    exact: bool
    compared: float = 1.0
    between: tuple[NumberRange, ...] = ()
    faults: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " with ".join(self.choices)
