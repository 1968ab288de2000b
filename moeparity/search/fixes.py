"""Fix sets: minimal sets of toggles whose restoring brings the candidate under the gate.

`may_stay` answers the opposite question: which toggles may stay at the candidate's value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from moeparity.search.memo import Effort, Memo, Names, Outcome, Players
from moeparity.search.restoring import Restoring, ddmin, further, under

BUDGET = 1024
"""A search may ask for this many mixtures: all subsets of ten toggles."""

LIMIT = 16
"""The search ends after the size at which this many fix sets are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixSet:
    """Toggles that, restored together, bring the candidate under the gate. The mixture was evaluated, not inferred.

    outcome: that of the candidate with these toggles restored.
    minimal: every proper subset was evaluated, and none is a fix. If False, less is known: no single toggle can be left
        out, and no subset that was evaluated is a fix.
    spoiled_by: the fewest further toggles that, restored with these, bring the candidate over the gate again, among the
        evaluated mixtures (every single further toggle, as far as the budget went). Empty if none does.
    """

    toggles: Players
    outcome: Outcome
    minimal: bool
    spoiled_by: Players

    def renamed(self, names: Names) -> FixSet:
        """A copy with the toggles' names in a report."""
        return replace(self, toggles=tuple(map(names, self.toggles)), spoiled_by=tuple(map(names, self.spoiled_by)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixes:
    """Fix sets, the smallest first; within one size in the order of the players.

    sets: only the empty set, if the candidate is under the gate as it is. players: all toggles.
    complete: `sets` has all minimal fix sets. exhaustive: `sets` has all minimal fix sets of up to this many toggles.
    refused: the number of sets that an op refused to run; they count as no fix.
    """

    gate: float
    players: Players
    sets: tuple[FixSet, ...]
    complete: bool
    exhaustive: int
    refused: int
    effort: Effort

    def renamed(self, names: Names) -> Fixes:
        """A copy with the toggles' names in a report."""
        sets = tuple(fix.renamed(names) for fix in self.sets)
        return replace(self, players=tuple(map(names, self.players)), sets=sets)


@dataclass(frozen=True, slots=True, kw_only=True)
class MayStay:
    """Toggles that may stay at the candidate's value, and the fix set that restores all others.

    cost: that of restoring all others; their number if no costs are given.
    certain: nothing that costs less is a fix; False: no cheaper fix was found.
    """

    toggles: Players
    restored: FixSet
    cost: float
    certain: bool

    def renamed(self, names: Names) -> MayStay:
        """A copy with the toggles' names in a report."""
        return replace(self, toggles=tuple(map(names, self.toggles)), restored=self.restored.renamed(names))


def fix_sets(memo: Memo, gate: float, *, limit: int = LIMIT, budget: int = BUDGET) -> Fixes:
    """All minimal fix sets, as far as the budget and the limit reach.

    A set is a fix if the candidate with it restored is `under` the gate. It is minimal if no proper subset is a fix,
    the empty set included. The metric need not be monotone, so nothing is inferred about sets that were not evaluated.
    Sets are evaluated by size, one batch for each size; a set is left out only if it contains a smaller fix, since it
    is not minimal then. If `budget` does not cover all subsets (with more than ten toggles, or a lower budget), sizes
    are evaluated in order as long as they take at most half of it. Then ddmin looks for more: among all toggles, then
    without one toggle of each known set, as in Reiter's hitting-set tree (1987). All smaller subsets of what it finds
    are evaluated if the budget allows; else `minimal` is False. A last batch tries each set with one further toggle
    restored. `budget` counts mixtures that were not known before; a run of ddmin that has begun is finished. `limit`
    ends the search after the size at which this many sets are known.
    Restoring all toggles gives the reference with its bits; if that is refused, or over the gate nevertheless, `sets`
    may be empty. Raises ValueError for a limit or a budget below 1.
    """
    if limit < 1 or budget < 1:
        raise ValueError(f"limit is {limit}, budget is {budget}; at least 1 expected of each")
    search = Restoring(memo, gate, budget)
    fixes, exhaustive, complete = _by_size(search, limit)
    minimal = dict.fromkeys(fixes, True)
    if not complete and len(fixes) < limit:
        minimal |= further(memo.players, fixes, search, limit)
    larger = [(*toggles, toggle) for toggles in minimal for toggle in memo.players if toggles and toggle not in toggles]
    if search.affords(larger):
        search.are_fixes(larger)
    _settle(search, minimal)
    by_size = sorted(minimal, key=lambda toggles: (len(toggles), [memo.players.index(t) for t in toggles]))
    return Fixes(
        gate=gate,
        players=memo.players,
        sets=tuple(_fix_set(search, toggles, minimal[toggles]) for toggles in by_size),
        complete=complete,
        exhaustive=exhaustive,
        refused=sum(memo.outcomes[mixture] is None for mixture in search.mixtures),
        effort=memo.since(search.start),
    )


def _by_size(search: Restoring, limit: int) -> tuple[list[Players], int, bool]:
    """Minimal fix sets by size; the size up to which these are all; whether there are no others of any size."""
    players = search.memo.players
    budget = search.budget if 1 << len(players) <= search.budget else search.budget // 2
    fixes: list[Players] = []
    no_toggle: Players = ()
    size, level = 0, [no_toggle]
    while level:
        if size and search.cost(level) > budget:
            return fixes, size - 1, False
        answers = search.are_fixes(level)
        fixes += [toggles for toggles, is_fix in zip(level, answers, strict=True) if is_fix]
        level = _next(players, [t for t, is_fix in zip(level, answers, strict=True) if not is_fix], fixes)
        size += 1
        if len(fixes) >= limit and level:
            return fixes, size - 1, False
    return fixes, len(players), True


def _next(players: Players, failures: Sequence[Players], fixes: Sequence[Players]) -> list[Players]:
    """The sets of the next size that contain no fix: each failure, extended by one player that comes later."""
    cores = [frozenset(toggles) for toggles in fixes]
    longer = ((*toggles, player) for toggles in failures for player in players[_after(players, toggles) :])
    return [toggles for toggles in longer if not any(core <= set(toggles) for core in cores)]


def _after(players: Players, toggles: Players) -> int:
    return players.index(toggles[-1]) + 1 if toggles else 0


def _settle(search: Restoring, minimal: dict[Players, bool]) -> None:
    """Replaces sets within which the search has meanwhile found a smaller fix."""
    while smaller := {t: part for t, is_minimal in minimal.items() if not is_minimal and (part := search.within(t))}:
        for toggles, part in smaller.items():
            del minimal[toggles]
            minimal.setdefault(ddmin(search.are_fixes, part), False)


def _fix_set(search: Restoring, toggles: Players, minimal: bool) -> FixSet:
    memo = search.memo
    outcome = memo[search.mixture(toggles)]
    assert outcome is not None
    members = frozenset(toggles)
    outcome_of = {memo.everything - mixture: result for mixture, result in memo.outcomes.items() if result is not None}
    spoiling = [
        tuple(player for player in memo.players if player in superset - members)
        for superset, result in outcome_of.items()
        if members < superset and not under(result, search.gate)
    ]
    order = {player: i for i, player in enumerate(memo.players)}
    fewest = min(spoiling, key=lambda superset: (len(superset), [order[player] for player in superset]), default=())
    return FixSet(toggles=toggles, outcome=outcome, minimal=minimal, spoiled_by=fewest)


def may_stay(fixes: Fixes, costs: Mapping[str, float] | None = None) -> MayStay | None:
    """The largest set of toggles that may stay; with `costs`, the one whose others are cheapest to restore. None
    without a fix.

    Every fix contains a minimal one, which costs no more; so the cheapest minimal fix is a cheapest fix, and the
    smallest leaves most toggles on. Among equally cheap ones the first of `fixes.sets` is taken, which restores the
    fewest. If not all minimal sets are known, the unknown ones have more toggles than `fixes.exhaustive`, so they cost
    at least as much as the `fixes.exhaustive` + 1 cheapest toggles. Costs are in any one unit, such as microseconds per
    step. Evaluates nothing. Raises ValueError for costs that are negative or not finite, and if a toggle has none.
    """
    prices = _prices(fixes.players, costs)
    # Fractions, so that equal costs are equal in whichever order they are added.
    fixes_by_price = [(sum((prices[toggle] for toggle in fix.toggles), Fraction()), fix) for fix in fixes.sets]
    if not fixes_by_price:
        return None
    cost, cheapest = min(fixes_by_price, key=lambda item: item[0])
    bound = sum(sorted(prices.values())[: fixes.exhaustive + 1], Fraction())
    return MayStay(
        toggles=tuple(player for player in fixes.players if player not in cheapest.toggles),
        restored=cheapest,
        cost=float(cost),
        certain=fixes.complete or cost <= bound,
    )


def _prices(players: Players, costs: Mapping[str, float] | None) -> dict[str, Fraction]:
    if costs is None:
        return dict.fromkeys(players, Fraction(1))
    unpriced = [player for player in players if player not in costs]
    if unpriced:
        raise ValueError(f"no cost for {unpriced}; one for each toggle expected")
    wrong = {player: costs[player] for player in players if not (math.isfinite(costs[player]) and costs[player] >= 0)}
    if wrong:
        raise ValueError(f"costs are {wrong}; finite numbers, not negative, expected")
    return {player: Fraction(costs[player]) for player in players}
