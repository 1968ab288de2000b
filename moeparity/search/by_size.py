"""Of each number of players, those whose restoring leaves least of a divergence, among the sets that were run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from moeparity.search.contrast import Bounds, Contrast, Interval, difference, usable
from moeparity.search.memo import Memo, Outcome, Players
from moeparity.search.waterfall import Waterfall

ALL_SIZES = 8
"""Up to this size a set of every size is run; beyond, sizes grow by a half each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """Players restored together in the candidate, and what that left. The mixture was evaluated, not inferred.

    gone: the fraction of the candidate's divergence that is gone with them restored; below 0 if there is more of it.
    interval: its 95 % interval over sequences. best: every set of this size was evaluated, and none leaves less.
    """

    players: Players
    outcome: Outcome
    gone: float
    interval: Interval
    best: bool


def by_size(memo: Memo, shares: Waterfall, bounds: Bounds) -> tuple[Restored, ...]:
    """For each number of players, the set of all evaluated ones whose restoring leaves least, the smallest first.

    Sets of players with the largest shares are evaluated here, in one batch, whatever was before: those with the
    largest one, two and so on, all sizes up to `ALL_SIZES`, then each a half larger than the last. Members of a group
    that was not divided count with an equal part of its share. Empty if the candidate's divergence is 0 or not finite.
    """
    order = _by_share(memo.players, shares)
    memo.ask([memo.everything - frozenset(order[:size]) for size in _sizes(len(order))])
    candidate = memo[memo.everything]
    if candidate is None or not usable(candidate) or not candidate.value > 0:
        return ()
    sizes = Counter(len(memo.everything) - len(mixture) for mixture in memo.outcomes)
    return tuple(
        _restored(memo, size, bounds, best=sizes[size] == math.comb(len(order), size))
        for size in range(1, len(order) + 1)
        if any(usable(outcome) for _, outcome in _of_size(memo, size))
    )


def _sizes(count: int) -> Iterator[int]:
    size = 1
    while size < count:
        yield size
        size = size + 1 if size < ALL_SIZES else size + size // 2
    yield count


def _by_share(players: Players, shares: Waterfall) -> Players:
    """Players, those with the largest shares first; of equal ones in their own order."""
    share_of = dict.fromkeys(players, Fraction())
    # Members come behind their group, and know better.
    for share in shares.shares:
        share_of |= dict.fromkeys(share.players, share.share / len(share.players))
    return tuple(sorted(players, key=lambda player: -share_of[player]))


def _of_size(memo: Memo, size: int) -> Iterator[tuple[Players, Outcome]]:
    """Every set of this many players that was restored and could be run, with its outcome."""
    for mixture, outcome in memo.outcomes.items():
        if outcome is not None and len(memo.players) - len(mixture) == size:
            yield tuple(player for player in memo.players if player not in mixture), outcome


def _restored(memo: Memo, size: int, bounds: Bounds, *, best: bool) -> Restored:
    runs = [(players, outcome) for players, outcome in _of_size(memo, size) if usable(outcome)]
    players, outcome = min(runs, key=lambda run: run[1].value)
    whole = Contrast({memo.everything: 1})
    fall = difference(memo.everything, memo.everything - frozenset(players))
    gone, divergence = fall.value(memo), whole.value(memo)
    assert gone is not None, "both mixtures are usable"
    assert divergence, "the candidate's divergence is above 0"
    return Restored(
        players=players,
        outcome=outcome,
        gone=float(gone / divergence),
        interval=fall.part(whole, memo, bounds),
        best=best,
    )
