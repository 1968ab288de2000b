"""What a report says of a user's function: which of the known choices gives its bits, or comes nearest to them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceMatch:
    """A choice, or two of them, with what it gives on the function's inputs, against what the function gave.

    choices: as `node:attribute=value`.
    equal: share of elements with equal values; exact: every bit and the dtype are equal.
    mean_ulp: mean distance in ulps of the coarser dtype; infinite where a value is not finite.
    """

    choices: tuple[str, ...]
    equal: float
    mean_ulp: float
    exact: bool

    def __str__(self) -> str:
        return " with ".join(self.choices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """A user's function where it first differs on equal inputs, and the choices of the vocabulary nearest to it.

    node: the node the function closes. tried: how many choices were run. as_it_is: share of elements equal without any.
    found: the choices that give all bits; else the nearest ones, the best first.
    """

    node: str
    call: str
    tried: int
    as_it_is: float
    found: tuple[ChoiceMatch, ...]

    @property
    def in_vocabulary(self) -> bool:
        """Whether some choice gives every bit."""
        return bool(self.found) and self.found[0].exact
