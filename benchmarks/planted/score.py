"""Answers held to the truth: what is right in each case, and how often over a suite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.planted.cases import Case
from benchmarks.planted.decoys import BLAMED, Answer
from benchmarks.planted.truth import Row, Truth

Outcome = Literal["right", "undecided", "wrong"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One decoy case.

    To blame are culprits and interchangeable toggles. toggles_named: those that have their role in the report.
    undecided: those of which it says that the sequences do not tell. missed: all others. blamed: innocents that it
    blames. shares, shares_given: of the toggles to blame, whether each true share (over all sequences, over those
    given) lies in the interval, widened by twice the standard error of the orders drawn. errors: of these, |share -
    truth over all sequences| as a part of the whole. top: whether the toggle with the largest share of those blamed
    is one with the largest true share, or one of the interchangeable ones. alarm: of a clean pair.
    """

    toggles_named: tuple[str, ...]
    undecided: tuple[str, ...]
    missed: tuple[str, ...]
    blamed: tuple[str, ...]
    shares: tuple[bool, ...]
    shares_given: tuple[bool, ...]
    errors: tuple[float, ...]
    top: bool
    alarm: bool

    @property
    def outcome(self) -> Outcome:
        """Right where everyone to blame is named and nobody else is, undecided where that is all that is amiss."""
        if self.missed or self.blamed:
            return "wrong"
        return "undecided" if self.undecided else "right"


def score(case: Case, truth: Truth, answer: Answer) -> Score:
    """One answer held to its truth."""
    guilty = [row for row in truth.rows if row.culprit or row.saturated]
    blamed = {key for key, role in answer.roles.items() if role in BLAMED}
    right_keys = truth.culprits & answer.with_role("culprit") | truth.saturated & answer.with_role("saturated")
    rest = {row.key for row in guilty} - right_keys
    return Score(
        toggles_named=tuple(sorted(right_keys)),
        undecided=tuple(sorted(rest & answer.with_role("undecided"))),
        missed=tuple(sorted(rest - answer.with_role("undecided"))),
        blamed=tuple(sorted(blamed - truth.culprits - truth.saturated)),
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
