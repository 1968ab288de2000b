"""What a report says of a user's function: which of the known choices gives its bits, or comes nearest to them."""

from __future__ import annotations

from dataclasses import dataclass

from moeparity.evidence.explain.report import ChoiceMatch


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
