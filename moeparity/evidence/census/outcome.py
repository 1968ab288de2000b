"""What became of tensors that were made of weights, as plain data and in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, get_args

from moeparity.errors import counted
from moeparity.output.words import few

Outcome = Literal["stale", "parted", "moved", "followed", "unmoved", "apart", "unknown"]
"""`stale`: it holds what its weight was before. `parted`: it keeps the storage that its weight has left. `moved`: its
address changed while a captured graph that reads the old one lives on. `followed`: it is what its weight now gives.
`unmoved`: its weight did not change there. `apart`: it holds neither what its weight was nor what it is. `unknown`:
nothing shows of what it was made.
"""
FAULTS: frozenset[Outcome] = frozenset({"stale", "parted", "moved"})
"""What is a fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """What became of a tensor at an update. sources: the weights that it was made of; says: the rest, in words."""

    path: str
    kind: str
    sources: tuple[str, ...]
    outcome: Outcome
    says: str


def in_words(derived: Derived) -> str:
    """A finding as a sentence, without its end."""
    weights = few(derived.sources, 3)
    if derived.outcome == "stale":
        verb = "was" if len(derived.sources) == 1 else "were"
        return f"{derived.path} holds what {weights} {verb} before the update ({derived.says})"
    if derived.outcome == "parted":
        return f"{derived.path} and {weights} parted: {derived.says}"
    return f"{derived.path} moved: {derived.says}"


def summed(results: Sequence[Derived]) -> str:
    """How many had which outcome, in words; "" where there are none."""
    counts = [(name, sum(each.outcome == name for each in results)) for name in get_args(Outcome)]
    words = ", ".join(f"{count} {name}" for name, count in counts if count)
    return f"{counted(len(results), 'tensor')} made of weights or unregistered: {words}" if words else ""


def faults(results: Iterable[Derived], snapshots: Sequence[str] = ()) -> list[Derived]:
    """What is a fault; not tensors whose path one of the globs `snapshots` matches: they hold earlier weights on
    purpose.
    """
    parted = [each for each in results if each.outcome in FAULTS]
    return [each for each in parted if not any(fnmatchcase(each.path, glob) for glob in snapshots)]
