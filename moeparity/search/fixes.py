"""Fix sets: toggles whose restoring brings the candidate under the gate, and from which nothing can be left out.

Their dual is what may stay as the candidate has it: `keep`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from moeparity.search.memo import Effort, Memo, Names, Outcome, Players
from moeparity.search.restoring import Restoring, ddmin, further, under

BUDGET = 1024
"""Mixtures that may be asked for: all subsets of ten toggles."""

LIMIT = 16
"""The search ends with the size at which so many fix sets are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixSet:
    """Toggles that, restored together, bring the candidate under the gate; evaluated, not inferred.

    outcome: of the candidate with them restored.
    minimal: no proper subset of it is a fix; each was evaluated. False where it is known only that no single toggle
        can be left out, and that no smaller set within it that was evaluated is a fix.
    spoiled_by: the fewest further toggles that, restored with these, bring the candidate over the gate again, among
        the mixtures that were evaluated: every single one was, as far as the budget went. Empty where none does.
    """

    toggles: Players
    outcome: Outcome
    minimal: bool
    spoiled_by: Players

    def renamed(self, names: Names) -> FixSet:
        """The same with its toggles under other names, for people."""
        return replace(self, toggles=tuple(map(names, self.toggles)), spoiled_by=tuple(map(names, self.spoiled_by)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixes:
    """Fix sets, the smallest first, in the players' order within one size.

    sets: where the candidate is under the gate as it is, the empty set alone.
    players: all toggles.
    complete: `sets` are all minimal fix sets there are.
    exhaustive: all minimal fix sets of up to so many toggles are in `sets`, each size having been looked through.
    refused: how many of the sets looked at an op refuses to run; they count as no fix.
    """

    gate: float
    players: Players
    sets: tuple[FixSet, ...]
    complete: bool
    exhaustive: int
    refused: int
    effort: Effort

    def renamed(self, names: Names) -> Fixes:
        """The same with its toggles under other names, for people."""
        sets = tuple(fix.renamed(names) for fix in self.sets)
        return replace(self, players=tuple(map(names, self.players)), sets=sets)


@dataclass(frozen=True, slots=True, kw_only=True)
class MayStay:
    """Toggles that may stay on under the gate, and the evaluated fix set that restores all others.

    cost: of restoring; how many toggles are restored where no costs are given.
    certain: nothing that costs less is a fix. Else no cheaper one was found.
    """

    toggles: Players
    restored: FixSet
    cost: float
    certain: bool

    def renamed(self, names: Names) -> MayStay:
        """The same with its toggles under other names, for people."""
        return replace(self, toggles=tuple(map(names, self.toggles)), restored=self.restored.renamed(names))


def fix_sets(memo: Memo, gate: float, *, limit: int = LIMIT, budget: int = BUDGET) -> Fixes:
    """All minimal fix sets, as far as the budget and the limit reach.

    A set is a fix when the candidate with it restored is `under` the gate; it is minimal when no proper subset is a
    fix, the empty set included. The metric need not be monotone, so nothing is inferred about a set that was not
    evaluated: sets are evaluated by size, one batch each, and only those that hold a smaller fix are left out, which
    by definition can't be minimal. Where `budget` does not hold all subsets (beyond ten toggles, or when it is set
    lower), sizes are gone through while they take no more than half of it, then ddmin looks for more: within all
    toggles, then without one toggle of each set known, as in Reiter's hitting-set tree (1987). Of what it finds, all
    smaller subsets are evaluated where the budget allows, else `minimal` is False. Last, in one batch, each set with
    one further toggle restored. `budget` counts mixtures not known before; ddmin ends its run once begun. `limit` ends
    the search after the size at which so many are known.
    Restoring all toggles is the reference, which has its own bits; if it is refused or over the gate all the same,
    `sets` may be empty. Raises ValueError for a limit or a budget below 1.
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
    """Minimal fix sets by size, the size up to which they are all, and whether there are no others at all."""
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
    """The sets of the next size that hold no fix: those that are no fix, each with one later player."""
    cores = [frozenset(toggles) for toggles in fixes]
    longer = ((*toggles, player) for toggles in failures for player in players[_after(players, toggles) :])
    return [toggles for toggles in longer if not any(core <= set(toggles) for core in cores)]


def _after(players: Players, toggles: Players) -> int:
    return players.index(toggles[-1]) + 1 if toggles else 0


def _settle(search: Restoring, minimal: dict[Players, bool]) -> None:
    """Replaces sets within which, as the search went on, a smaller fix was found."""
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


def keep(fixes: Fixes, costs: Mapping[str, float] | None = None) -> MayStay | None:
    """The most toggles that may stay on, with `costs` those whose others are cheapest to restore; None without a fix.

    Every fix holds a minimal one, which costs no more, so the cheapest minimal fix is a cheapest fix, and the smallest
    leaves the most on. Of equally cheap ones the first of `fixes.sets` is taken, which restores the fewest. Where not
    all minimal sets are known, the others have more toggles than `fixes.exhaustive`, and cost no less than so many and
    one of the cheapest. Costs are in any one unit, such as microseconds per step. Asks nothing.
    Raises ValueError for costs that are negative or not finite, and where a toggle has none.
    """
    prices = _prices(fixes.players, costs)
    # Rational sums: equal costs are equal in whichever order they are added.
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
