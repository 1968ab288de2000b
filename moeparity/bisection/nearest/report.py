"""What a report says of a user's function: which of the known choices gives its bits, or comes nearest to them."""

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
    """Known choices, with what they give on the function's inputs, against what the function gave.

    choices: as `node:attribute=value`; of a number of the model, such as a scale, `node:parameter=value`.
    equal: share of elements with equal values; exact: every bit and the dtype are equal. compared: the share of the
    function's elements that this was looked at on.
    mean_ulp: mean distance in ulps of the coarser dtype; infinite where a value is not finite.
    between: where an exact choice is a number of which others do as well.
    """

    choices: tuple[str, ...]
    equal: float
    mean_ulp: float
    exact: bool
    compared: float = 1.0
    between: tuple[NumberRange, ...] = ()

    def __str__(self) -> str:
        return " with ".join(self.choices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """A user's function that gives other bits than the other side's kernels, and the known choices nearest to it.

    node: the node the function closes. tried: how many combinations of choices were run, in `calls` kernel calls.
    as_it_is: share of elements equal without any.
    found: what gives all bits, the plainest first; else what comes nearest, the best first.
    """

    node: str
    call: str
    tried: int
    as_it_is: float
    found: tuple[ChoiceMatch, ...]
    calls: int = 0

    @property
    def explained(self) -> bool:
        """Whether some of the choices tried give every bit."""
        return bool(self.found) and self.found[0].exact
