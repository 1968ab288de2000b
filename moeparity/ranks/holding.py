"""The result of comparing a process with a contract: what it breaks, what it keeps, what it can't show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_MOST = 5
"""A refusal names at most this many broken choices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """A choice that differs from the contract. section: its section of the contract. by: what shows the value that the
    process runs; "" if that is obvious.
    """

    section: str
    choice: str
    claimed: str
    present: str
    by: str = ""

    def __str__(self) -> str:
        """`profile: layers[0].moe.experts:implementation: loop in the contract, grouped here, as the process shows`."""
        known_by = f", {self.by}" if self.by else ""
        return f"{self.section}: {self.choice}: {self.claimed} in the contract, {self.present} here{known_by}"


@dataclass(slots=True, kw_only=True)
class Holding:
    """How a process compares with a contract. kept: by section, sentences that say how many choices were looked at and
    are as claimed, and what showed them. unchecked: sentences on what the process does not show, which never counts as
    kept.
    """

    breaches: list[Breach] = field(default_factory=list)
    kept: dict[str, list[str]] = field(default_factory=dict)
    unchecked: list[str] = field(default_factory=list)

    def keep(self, section: str, words: str) -> None:
        """Note what was looked at and is as claimed."""
        self.kept.setdefault(section, []).append(words)

    def add(self, addend: Holding) -> None:
        """Add the results of a part of the checks."""
        self.breaches += addend.breaches
        self.unchecked += addend.unchecked
        for section, words in addend.kept.items():
            self.kept.setdefault(section, []).extend(words)

    def __str__(self) -> str:
        """A line for each result: broken, kept, not checked."""
        kept_lines = [f"kept: {section}: {words}" for section, lines in self.kept.items() for words in lines]
        return "\n".join(
            [
                *(f"broken: {breach}" for breach in self.breaches),
                *kept_lines,
                *(f"not checked: {w}" for w in self.unchecked),
            ]
        )


def differing(section: str, claimed: Mapping[str, str], own_values: Mapping[str, str]) -> list[Breach]:
    """Breaches of claimed fields; a field that is not claimed can't be broken."""
    return [
        Breach(section=section, choice=name, claimed=value, present=own_values.get(name, "absent"))
        for name, value in claimed.items()
        if own_values.get(name) != value
    ]


def refusal(by_rank: Mapping[int, Iterable[str]]) -> str | None:
    """The words with which all ranks refuse together; None if no rank has anything to refuse."""
    ranks: dict[str, list[int]] = {}
    for rank, words in by_rank.items():
        for breach in words:
            ranks.setdefault(breach, []).append(rank)
    if not ranks:
        return None
    alone = len(by_rank) == 1
    lines = [
        words if alone or len(holders) == len(by_rank) else f"rank {', '.join(map(str, holders))}: {words}"
        for words, holders in ranks.items()
    ]
    more = f"; and {len(lines) - _MOST} more" if len(lines) > _MOST else ""
    return "; ".join(lines[:_MOST]) + more
