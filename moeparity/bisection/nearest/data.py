"""The known choices nearest to users' functions; plain data."""

from __future__ import annotations

from dataclasses import dataclass

from moeparity.evidence.explain.report import ChoiceMatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """A user's function with other bits than the other side's kernels give, and the known choices nearest to it.

    node: the last node that the function computes. tried: how many combinations of choices were run, in `calls` kernel
    calls. as_it_is: fraction of equal elements without any such choice. found: the choices that give all bits, the
    plainest first; if none does, the nearest, the best first.
    """

    node: str
    call: str
    tried: int
    as_it_is: float
    found: tuple[ChoiceMatch, ...]
    calls: int = 0

    @property
    def explained(self) -> bool:
        """Whether some of the tried choices give every bit."""
        return bool(self.found) and self.found[0].exact


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestAnswers:
    """The nearest choices of every user's function; empty if none runs."""

    nearest: tuple[Nearest, ...]
