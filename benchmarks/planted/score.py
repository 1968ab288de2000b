"""Answers held to the truth: what is right in each case, and how often over a suite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.planted.cases import Case
from benchmarks.planted.decoys import BLAMED, Answer
from benchmarks.planted.truth import Row, Truth


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One decoy case.

    missed: culprits that the report does not blame. blamed: innocents that it does. saturated: whether the set of
    interchangeable toggles is the true one. shares, shares_given: of the toggles to blame, whether each true share
    (over all sequences, over those given) lies in the interval, widened by twice the standard error of the orders
    drawn. errors: of these, |share - truth over all sequences| as a part of the whole. top: whether the toggle with the
    largest share is one with the largest true share, or one of the interchangeable ones. alarm: of a clean pair.
    """

    missed: tuple[str, ...]
    blamed: tuple[str, ...]
    saturated: bool
    shares: tuple[bool, ...]
    shares_given: tuple[bool, ...]
    errors: tuple[float, ...]
    top: bool
    alarm: bool

    @property
    def right(self) -> bool:
        """Every culprit found, no innocent blamed, the interchangeable ones named."""
        return not self.missed and not self.blamed and self.saturated


def score(case: Case, truth: Truth, answer: Answer) -> Score:
    """One answer held to its truth."""
    guilty = [row for row in truth.rows if row.culprit or row.saturated]
    blamed = {key for key, role in answer.roles.items() if role in BLAMED}
    return Score(
        missed=tuple(sorted(truth.culprits - answer.named("culprit"))),
        blamed=tuple(sorted(blamed - truth.culprits - truth.saturated)),
        saturated=answer.named("saturated") == truth.saturated,
        shares=tuple(_within(answer, row.key, row.share) for row in guilty),
        shares_given=tuple(_within(answer, row.key, row.given) for row in guilty),
        errors=tuple(_error(answer, row, truth) for row in guilty),
        top=_top(truth, answer, blamed),
        alarm=case.background == "clean" and (bool(blamed) or answer.status != "pass"),
    )


def _within(answer: Answer, key: str, share: float) -> bool:
    if key not in answer.shares:
        return False
    _, low, high, error = answer.shares[key]
    return low - 2 * error <= share <= high + 2 * error


def _error(answer: Answer, row: Row, truth: Truth) -> float:
    return abs(answer.shares.get(row.key, (0.0,))[0] - row.share) / truth.whole


def _top(truth: Truth, answer: Answer, blamed: set[str]) -> bool:
    if not blamed:
        return not (truth.culprits or truth.saturated)
    largest = max(blamed, key=lambda key: answer.shares[key][0])
    first = max(truth.rows, key=lambda row: row.share).key
    return largest == first or largest in truth.saturated


def part(right: Sequence[bool]) -> str:
    """`152 of 160 (95.0 %)`."""
    return f"{sum(right)} of {len(right)}" + (f" ({sum(right) / len(right):.1%})" if right else "")
