"""The dual of fix sets: what may stay as the candidate has it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from moeparity.search.fixes import Fixes, FixSet
from moeparity.search.memo import Players


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Toggles that may stay on under the gate, and the evaluated fix set that restores all others.

    cost: of restoring; how many toggles are restored where no costs are given.
    certain: nothing that costs less is a fix. Else no cheaper one was found.
    """

    toggles: Players
    restored: FixSet
    cost: float
    certain: bool


def keep(fixes: Fixes, costs: Mapping[str, float] | None = None) -> Kept | None:
    """The most toggles that may stay on, with `costs` those whose others are cheapest to restore; None without a fix.

    Every fix holds a minimal one, which costs no more, so the cheapest minimal fix is a cheapest fix, and the smallest
    leaves the most on. Of equally cheap ones the first of `fixes.sets` is taken, which restores the fewest. Where not
    all minimal sets are known, the others have more toggles than `fixes.exhaustive`, and cost no less than so many and
    one of the cheapest. Costs are in any one unit, such as microseconds per step. Asks nothing.
    Raises ValueError for costs that are negative or not finite, and where a toggle has none.
    """
    prices = _prices(fixes.players, costs)
    # Rational sums: equal costs are equal in whichever order they are added.
    priced = [(sum((prices[toggle] for toggle in found.toggles), Fraction()), found) for found in fixes.sets]
    if not priced:
        return None
    cost, restored = min(priced, key=lambda item: item[0])
    others = sum(sorted(prices.values())[: fixes.exhaustive + 1], Fraction())
    return Kept(
        toggles=tuple(player for player in fixes.players if player not in restored.toggles),
        restored=restored,
        cost=float(cost),
        certain=fixes.complete or cost <= others,
    )


def _prices(players: Players, costs: Mapping[str, float] | None) -> dict[str, Fraction]:
    if costs is None:
        return dict.fromkeys(players, Fraction(1))
    missing = [player for player in players if player not in costs]
    if missing:
        raise ValueError(f"no cost for {missing}; one for each toggle expected")
    wrong = {player: costs[player] for player in players if not (math.isfinite(costs[player]) and costs[player] >= 0)}
    if wrong:
        raise ValueError(f"costs are {wrong}; finite numbers, not negative, expected")
    return {player: Fraction(costs[player]) for player in players}
