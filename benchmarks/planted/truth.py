"""What is so in a decoy case, judged from the costs of all mixtures and from nothing else. Free of moeparity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.planted.cases import Background
from benchmarks.planted.factorial import shapley

Costs = npt.NDArray[np.float64]

CULPRIT = 0.1
"""A culprit's share of the whole divergence is at least this; restoring it lowers the divergence."""
SATURATED = 0.5
"""Saturated toggles make at least this part of the divergence alone, and leave as much restored; at least two do."""
OFFSETTING = 1.25
"""Where more than this part of the divergence is left, a toggle cancels others: it is not saturated."""
UNCLEAR_SHARE = (0.05, 0.15)
UNCLEAR_SATURATION = (0.4, 0.6)
UNCLEAR_OFFSET = (1.15, 1.4)
STANDS_OUT = 4.0
"""A culprit's share, and what restoring it changes, are so many standard errors (of the given sequences) above 0."""
APART = 0.1
"""Restoring a saturated toggle changes something in so many of the sequences; in the others it is masked."""
"""Where a draw lies too near to one of these lines to say on which side, it is drawn again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One toggle: nats per token over all sequences, and over those that moeparity is given.

    `spread`: how many standard errors of as many sequences as are given its share and its change lie from 0, the fewer
    of both, by the spread over all sequences. `idle`: no two mixtures that differ by it alone differ in any sequence.
    `least`, `least_given`: the smaller of alone and restored as a part of the whole, over all and the given sequences.
    `apart`: in which part of the sequences restoring it changes anything.
    """

    key: str
    share: float
    given: float
    alone: float
    restored: float
    spread: float
    least: float
    least_given: float
    apart: float
    idle: bool
    culprit: bool
    saturated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What is so. `whole` and `given` are the candidate's KL in nats per token, over all and the given sequences."""

    whole: float
    given: float
    mixtures: int
    rows: tuple[Row, ...]

    @property
    def culprits(self) -> frozenset[str]:
        """Who is to blame alone."""
        return frozenset(row.key for row in self.rows if row.culprit)

    @property
    def saturated(self) -> frozenset[str]:
        """Who can stand in for each other."""
        return frozenset(row.key for row in self.rows if row.saturated)


def read(data: dict[str, object]) -> Truth:
    """The inverse of `asdict`."""
    rows = data["rows"]
    assert isinstance(rows, list)
    return Truth(**{**data, "rows": tuple(Row(**row) for row in rows)})  # type: ignore[arg-type]


def judged(keys: Sequence[str], costs: Costs, count: int) -> Truth:
    """The truth of the costs [2^n, B] of all mixtures, in nats per token; `count` sequences are moeparity's."""
    every, first = costs.mean(1), costs[:, :count].mean(1)
    all_of_them = len(every) - 1
    by_sequence, of_first = shapley(costs, len(keys)), shapley(first, len(keys))
    shares = by_sequence.mean(1)
    whole = every[all_of_them]
    restored = [all_of_them ^ 1 << i for i in range(len(keys))]
    apart = [float((costs[mixture] != costs[all_of_them]).mean()) for mixture in restored]
    least, least_given = (
        [_part(min(means[1 << i], means[mixture]), means[all_of_them]) for i, mixture in enumerate(restored)]
        for means in (every, first)
    )
    offsetting = [every[mixture] <= OFFSETTING * whole for mixture in restored]
    stand_in = [a >= SATURATED and b > 0 and c for a, b, c in zip(least, apart, offsetting, strict=True)]
    rows = []
    for i, key in enumerate(keys):
        without = np.array([m for m in range(len(every)) if not m >> i & 1])
        saturated = bool(stand_in[i] and sum(stand_in) > 1)
        lowers = every[restored[i]] < whole
        culprit = bool(whole > 0 and not saturated and shares[i] >= CULPRIT * whole and lowers)
        rows.append(
            Row(
                key=key,
                share=float(shares[i]),
                given=float(of_first[i]),
                alone=float(every[1 << i]),
                restored=float(every[restored[i]]),
                spread=min(spread(by_sequence[i], count), spread(costs[-1] - costs[restored[i]], count)),
                least=least[i],
                least_given=least_given[i],
                apart=apart[i],
                idle=bool((costs[without] == costs[without | 1 << i]).all()),
                culprit=culprit,
                saturated=saturated,
            )
        )
    return Truth(whole=float(whole), given=float(first[all_of_them]), mixtures=len(every), rows=tuple(rows))


def _part(cost: float, whole: float) -> float:
    return float(cost / whole) if whole > 0 else 0.0


def spread(values: Costs, count: int) -> float:
    """The mean over its standard error, if so many sequences were given; 0 where all are 0."""
    error = float(values.std(ddof=1)) / count**0.5
    return abs(float(values.mean())) / error if error else 0.0


def unclear(truth: Truth, background: Background) -> str:
    """Why the truth is too near to a line, or not what the background asks for; empty where it is clear."""
    if background == "clean":
        return "" if all(row.idle for row in truth.rows) else "not clean"
    if truth.whole <= 0:
        return "nothing differs"
    for row in truth.rows:
        low, high = UNCLEAR_SATURATION
        if low < row.least < high:
            return "near saturation"
        if (row.least >= high) != (row.least_given >= high) or low < row.least_given < high:
            return "lost in the spread over sequences"
        if row.least >= high and row.apart < APART:
            return "masked in most sequences"
        offset = row.restored / truth.whole
        if row.least >= high and UNCLEAR_OFFSET[0] < offset < UNCLEAR_OFFSET[1]:
            return "near offsetting"
        share = row.share / truth.whole
        if not row.saturated and UNCLEAR_SHARE[0] < abs(share) < UNCLEAR_SHARE[1]:
            return "share near a tenth"
        if row.culprit and row.spread < STANDS_OUT:
            return "lost in the spread over sequences"
        if not row.saturated and not row.culprit and share >= UNCLEAR_SHARE[1] and offset <= OFFSETTING:
            return "restoring it lowers nothing"
    if background == "bf16":
        return "" if 2 <= len(truth.saturated) <= 4 and not truth.culprits else "not saturated"
    return "" if 1 <= len(truth.culprits) <= 4 else "no culprit"
