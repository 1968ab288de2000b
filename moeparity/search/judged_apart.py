"""What is left of a divergence once all toggles that are not legal choices are restored."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from moeparity.search.contrast import Bounds, Interval, difference
from moeparity.search.memo import Memo, Mixture, Names, Outcome, Players


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """Toggles that are not legal choices, restored together.

    without: the outcome of the candidate with them restored. change: the 95 % interval of that KL minus the
        candidate's.
    forced, forced_without, forced_change: the candidate's outcome and the same figures with every router forced to the
        reference's expert ids; None and infinite if no mixture was run so.
    """

    toggles: Players
    without: Outcome | None
    change: Interval
    forced: Outcome | None
    forced_without: Outcome | None
    forced_change: Interval

    def renamed(self, names: Names) -> Apart:
        """A copy with the toggles' names in a report."""
        return replace(self, toggles=tuple(map(names, self.toggles)))


def judged_apart(names: Mixture, memo: Memo, forced: Memo | None, bounds: Bounds) -> Apart | None:
    """What is left with the toggles `names` restored, free and in the `forced` mixtures; None if there are none, or
    no others.
    """
    if not names or names == memo.everything:
        return None
    everything, without = memo.everything, memo.everything - names
    change = difference(without, everything)
    return Apart(
        toggles=tuple(player for player in memo.players if player in names),
        without=memo[without],
        change=change.interval(memo, bounds),
        forced=None if forced is None else forced[everything],
        forced_without=None if forced is None else forced[without],
        forced_change=(-math.inf, math.inf) if forced is None else change.interval(forced, bounds),
    )
