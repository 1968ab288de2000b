"""Fix sets: toggles whose restoring brings the candidate under the gate, and from which nothing can be left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moeparity.search.ddmin import ddmin
from moeparity.search.hitting import further
from moeparity.search.memo import Oracle, Outcome, Players, Spent
from moeparity.search.restoring import Restoring, under

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
    supersets: how many larger sets, this one inside, were evaluated and not refused.
    """

    toggles: Players
    outcome: Outcome
    minimal: bool
    spoiled_by: Players
    supersets: int


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
    spent: Spent

    @property
    def non_monotone(self) -> bool:
        """Whether restoring more was seen to bring a candidate that was under the gate over it again."""
        return any(found.spoiled_by for found in self.sets)

    @property
    def all_sets(self) -> int:
        """What looking at every set one by one takes: a mixture, and a pass over the weights, for each."""
        return 1 << len(self.players)


def fix_sets(oracle: Oracle, gate: float, *, limit: int = LIMIT, budget: int = BUDGET) -> Fixes:
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
    search = Restoring(oracle, gate, budget)
    found, exhaustive, complete = _by_size(search, limit)
    minimal = dict.fromkeys(found, True)
    if not complete and len(found) < limit:
        minimal |= further(oracle.players, found, search, limit)
    larger = [(*toggles, more) for toggles in minimal for more in oracle.players if toggles and more not in toggles]
    if search.affords(larger):
        search.are_fixes(larger)
    _settle(search, minimal)
    ordered = sorted(minimal, key=lambda toggles: (len(toggles), [oracle.players.index(t) for t in toggles]))
    return Fixes(
        gate=gate,
        players=oracle.players,
        sets=tuple(_fix_set(search, toggles, minimal[toggles]) for toggles in ordered),
        complete=complete,
        exhaustive=exhaustive,
        refused=sum(oracle.known[mixture] is None for mixture in search.looked_at),
        spent=oracle.since(search.before),
    )


def _by_size(search: Restoring, limit: int) -> tuple[list[Players], int, bool]:
    """Minimal fix sets by size, the size up to which they are all, and whether there are no others at all."""
    players = search.oracle.players
    budget = search.budget if 1 << len(players) <= search.budget else search.budget // 2
    found: list[Players] = []
    no_toggle: Players = ()
    size, level = 0, [no_toggle]
    while level:
        if size and search.cost(level) > budget:
            return found, size - 1, False
        answers = search.are_fixes(level)
        found += [toggles for toggles, is_fix in zip(level, answers, strict=True) if is_fix]
        level = _next(players, [t for t, is_fix in zip(level, answers, strict=True) if not is_fix], found)
        size += 1
        if len(found) >= limit and level:
            return found, size - 1, False
    return found, len(players), True


def _next(players: Players, without: Sequence[Players], found: Sequence[Players]) -> list[Players]:
    """The sets of the next size that hold no fix: those that are no fix, each with one later player."""
    fixes = [frozenset(toggles) for toggles in found]
    longer = ((*toggles, more) for toggles in without for more in players[_after(players, toggles) :])
    return [toggles for toggles in longer if not any(fix <= set(toggles) for fix in fixes)]


def _after(players: Players, toggles: Players) -> int:
    return players.index(toggles[-1]) + 1 if toggles else 0


def _settle(search: Restoring, minimal: dict[Players, bool]) -> None:
    """Replaces sets within which, as the search went on, a smaller fix was found."""
    while smaller := {t: part for t, proved in minimal.items() if not proved and (part := search.within(t))}:
        for toggles, part in smaller.items():
            del minimal[toggles]
            minimal.setdefault(ddmin(search.are_fixes, part), False)


def _fix_set(search: Restoring, toggles: Players, minimal: bool) -> FixSet:
    oracle = search.oracle
    outcome = oracle[search.mixture(toggles)]
    assert outcome is not None
    held = frozenset(toggles)
    restored = {oracle.everything - mixture: other for mixture, other in oracle.known.items() if other is not None}
    larger = [more for more in restored if held < more]
    spoiling = [
        tuple(player for player in oracle.players if player in more - held)
        for more in larger
        if not under(restored[more], search.gate)
    ]
    order = {player: i for i, player in enumerate(oracle.players)}
    fewest = min(spoiling, key=lambda more: (len(more), [order[player] for player in more]), default=())
    return FixSet(toggles=toggles, outcome=outcome, minimal=minimal, spoiled_by=fewest, supersets=len(larger))
