"""The waterfall: divides the whole divergence into shares of toggles and groups, without a remainder."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from moeparity.metrics.verdict import sequences_needed
from moeparity.search.contrast import CARRYING, Bounds, Interval, carrying, difference
from moeparity.search.ledger import PAIRS, Ledger
from moeparity.search.memo import Effort, Memo, Mixture, Names, Outcome, Players
from moeparity.search.offsetting import OffsettingPair, offsetting
from moeparity.search.roles import SHARE, Role, StandsIn, role, stands_in
from moeparity.search.tree import Cell, Group, leaves, name, walk


def localise(
    memo: Memo,
    tree: Cell,
    bounds: Bounds,
    *,
    apart: Mixture = frozenset(),
    worth: float = SHARE,
    budget: int | None = None,
    pairs: int = PAIRS,
    seed: int = 0,
) -> Waterfall:
    """The waterfall of a tree in which only groups with |share| >= `worth` of the whole divergence are opened.

    With layers in nested halves this is a bisection that follows every culprit. Shares equal those of `waterfall` for
    the same tree, pairs and seed as long as no order is left out: the orders are the same, and only the mixtures at the
    borders of opened groups are evaluated. Each round opens all groups worth it in one batch, so there are at most two
    batches more than levels. Opening a pair of halves costs one mixture for each order, and four for each half alone
    and restored. `budget` bounds the number of mixtures: groups with the largest shares go first, in more rounds, and a
    group that can't be paid stays whole; the members of the tree itself always get shares.
    A group whose parts cancel each other has a small share and stays whole.
    Raises ValueError as `waterfall` does.
    """
    start = memo.effort
    ledger = Ledger(memo, tree, pairs, seed)
    memo.ask(ends(memo))
    total = total_of(memo)
    closed_groups: set[Cell] = set()
    groups = [tree] if isinstance(tree, Group) and total is not None else []
    while groups:
        memo.ask(mixture for group in groups for mixture in _mixtures_to_open(ledger, group))
        closed_groups |= {group for group in groups if not ledger.open(group)}
        remainder = None if budget is None else budget - memo.since(start).mixtures
        least = abs(total or Fraction()) * Fraction(worth)
        groups = _affordable(ledger, _worthy(ledger, least, closed_groups), remainder)
    return waterfall_of(ledger, total, bounds, apart, start)


def _mixtures_to_open(ledger: Ledger, group: Group) -> list[frozenset[str]]:
    """The mixtures that give the members of a group their shares."""
    return [*ledger.needs(group), *marginal_mixtures(ledger.memo, group.members)]


def _worthy(ledger: Ledger, least: Fraction, closed_groups: set[Cell]) -> list[Group]:
    """The visible groups that are not opened yet and worth it, the largest share first."""
    visible = (cell for cell, _ in walk(ledger.tree, inside=ledger.open_groups))
    groups = [g for g in visible if isinstance(g, Group) and g not in ledger.open_groups and g not in closed_groups]
    sizes = {group: abs(ledger.share(group).value(ledger.memo) or Fraction()) for group in groups}
    worthy = [group for group in groups if sizes[group] >= least and sizes[group]]
    return sorted(worthy, key=sizes.__getitem__, reverse=True)


def _affordable(ledger: Ledger, groups: Sequence[Group], budget: int | None) -> list[Group]:
    """The first groups whose mixtures together number at most `budget`."""
    for count in range(len(groups), 0, -1):
        needs = (mixture for group in groups[:count] for mixture in _mixtures_to_open(ledger, group))
        if budget is None or len(ledger.memo.additions(needs)) <= budget:
            return list(groups[:count])
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one toggle, or one group, adds to the divergence.

    depth: 0 for a member of the whole tree, 1 for a member of such a member, and so on.
    divided: its members follow with their own shares, which add up to this one.
    share: nats per token, an exact fraction; `float(share)` rounds once.
    k3: its share of k3; None if some k3 is not finite. The mixtures did not sample the tokens on which k3 is taken.
    standard_error: of the share, from drawing orders; 0 if all were taken, infinite if fewer than two pairs are left.
    interval: 95 % interval of the share over sequences, for the orders taken.
    part: 95 % interval of the share as a fraction of the whole; infinite if the sequences do not bound it.
    alone, restored: the reference with this cell of the candidate (one-in); the candidate with this cell of the
        reference (leave-one-out).
    change: 95 % interval of the paired difference restored - candidate.
    needed: an estimate of how many sequences like these would decide its role; None if it is decided, or if these do
        not tell.
    """

    name: str
    players: Players
    depth: int
    divided: bool
    share: Fraction
    k3: Fraction | None
    standard_error: float
    interval: Interval
    part: Interval
    alone: Outcome | None
    restored: Outcome | None
    change: Interval
    needed: int | None
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    """The candidate's divergence, divided into shares.

    total: the candidate's KL minus that of the reference against itself (which is 0), nats per token; None if an op
        refuses one of them or it is not finite. The shares of depth 0 add up to it exactly, as do those in a divided
        cell.
    shares: in the order of the tree, each cell before its members; empty if `total` is None, or if an op refuses some
        mixture of every order.
    pairs: neighbouring cells that offset each other.
    exact: all orders that keep groups together were taken, except those left out.
    orders, left_out: how many were taken, and how many were not, since an op refuses a mixture on their way or its KL
        is not finite.
    """

    total: Fraction | None
    shares: tuple[Share, ...]
    exact: bool
    orders: int
    left_out: int
    effort: Effort
    pairs: tuple[OffsettingPair, ...] = ()

    def renamed(self, names: Names) -> Waterfall:
        """A copy with the cells' names in a report."""
        return replace(
            self,
            shares=tuple(replace(share, name=names(share.name)) for share in self.shares),
            pairs=tuple(replace(pair, first=names(pair.first), second=names(pair.second)) for pair in self.pairs),
        )


def waterfall(
    memo: Memo,
    tree: Cell,
    bounds: Bounds,
    *,
    apart: Mixture = frozenset(),
    pairs: int = PAIRS,
    seed: int = 0,
) -> Waterfall:
    """Shares of all toggles: Owen values over nested groups (Owen 1977; Winter 1989 for several levels).

    A share is the mean of what a cell adds when toggles go one by one from the reference's to the candidate's value,
    over the orders in which the toggles of each group are neighbours; without groups it is the Shapley value. All
    orders are taken if they pass through at most `ledger.EXACT` mixtures (seven ungrouped toggles, more in groups);
    else `pairs` orders are drawn from `seed`, each with its reverse (antithetic). Asks for one batch, of at most 2 *
    pairs * (n - 1) mixtures for n toggles and each cell alone and restored, and for a second one if pairs may offset
    each other. Along each order the costs telescope from the reference to the candidate, and means are exact fractions;
    so the shares add up to the whole without rounding or remainder, also if orders are drawn or left out.
    `apart`: players that are not legal choices; a cell with one can't replace another.
    Raises ValueError for a tree that does not contain each player once, and for pairs < 1.
    """
    start = memo.effort
    ledger = Ledger(memo, tree, pairs, seed)
    groups = [cell for cell, _ in walk(tree, 0) if isinstance(cell, Group)]
    cells = [cell for cell, _ in walk(tree, 0) if cell is not tree]
    memo.ask(
        [*ends(memo), *(need for group in groups for need in ledger.needs(group)), *marginal_mixtures(memo, cells)]
    )
    total = total_of(memo)
    if total is not None:
        for group in groups:
            # The members of a group that stays whole get no shares.
            if group is tree or _parent(tree, group) in ledger.open_groups:
                ledger.open(group)
    return waterfall_of(ledger, total, bounds, apart, start)


def ends(memo: Memo) -> list[Mixture]:
    """The reference and the candidate."""
    return [frozenset(), memo.everything]


def marginal_mixtures(memo: Memo, cells: Iterable[Cell]) -> list[Mixture]:
    """The mixtures of each cell alone and restored, which are shown beside shares."""
    members = [frozenset(leaves(cell)) for cell in cells]
    return [mixture for toggles in members for mixture in (toggles, memo.everything - toggles)]


def total_of(memo: Memo) -> Fraction | None:
    """The divergence to divide, nats per token; None if unknown or not finite."""
    return difference(memo.everything, frozenset()).value(memo)


def waterfall_of(ledger: Ledger, total: Fraction | None, bounds: Bounds, apart: Mixture, start: Effort) -> Waterfall:
    """The waterfall of all cells in opened groups."""
    shares: list[Share] = []
    pairs: list[OffsettingPair] = []
    if total is not None:
        ledger.memo.ask(marginal_mixtures(ledger.memo, (cell for cell, _ in _visible(ledger))))
        changes = {cell: _change(ledger.memo, cell, bounds) for cell, _ in _visible(ledger)}
        pairs = list(_pairs(ledger, changes, bounds))
        shares = list(_shares(ledger, changes, pairs, bounds, apart))
    return Waterfall(
        total=total,
        shares=tuple(shares),
        exact=ledger.exact,
        orders=ledger.orders,
        left_out=ledger.left_out,
        effort=ledger.memo.since(start),
        pairs=tuple(pairs),
    )


def _pairs(ledger: Ledger, changes: Mapping[Cell, Interval], bounds: Bounds) -> Iterator[OffsettingPair]:
    """The offsetting pairs among the members of each opened group."""
    groups = dict.fromkeys(_parent(ledger.tree, cell) for cell in changes if cell is not ledger.tree)
    for group in groups:
        yield from offsetting(ledger.memo, {member: changes[member] for member in group.members}, bounds)


def _shares(
    ledger: Ledger,
    changes: Mapping[Cell, Interval],
    pairs: Sequence[OffsettingPair],
    bounds: Bounds,
    apart: Mixture,
) -> Iterator[Share]:
    offset = {member for pair in pairs for member in (pair.first, pair.second)}
    positions = {
        cell: stands_in(ledger.memo, frozenset(leaves(cell)), changes[cell], bounds)
        if apart.isdisjoint(leaves(cell))
        else StandsIn.NO
        for cell in changes
    }
    for cell, depth in _visible(ledger):
        members = () if cell is ledger.tree else _parent(ledger.tree, cell).members
        beside = max((positions[member] for member in members if member is not cell), default=StandsIn.NO)
        position = min(positions[cell], beside)
        yield _share(ledger, cell, depth, bounds, changes[cell], position, offset=name(cell) in offset)


def _change(memo: Memo, cell: Cell, bounds: Bounds) -> Interval:
    """The interval of the whole's change when a cell is restored."""
    return difference(memo.everything - frozenset(leaves(cell)), memo.everything).interval(memo, bounds)


def _visible(ledger: Ledger) -> list[tuple[Cell, int]]:
    """The cells with a share, in the order of the tree; a tree that is a single player is its own cell."""
    if isinstance(ledger.tree, str):
        return [(ledger.tree, 0)]
    return [row for row in walk(ledger.tree, -1, ledger.open_groups) if row[0] is not ledger.tree]


def _share(
    ledger: Ledger, cell: Cell, depth: int, bounds: Bounds, change: Interval, position: StandsIn, *, offset: bool
) -> Share:
    memo = ledger.memo
    mixture = frozenset(leaves(cell))
    contrast, whole = ledger.share(cell), difference(memo.everything, frozenset())
    share = contrast.value(memo)
    assert share is not None, "orders in use have finite mixtures only"
    interval, part = contrast.interval(memo, bounds), contrast.part(whole, memo, bounds)
    row = Share(
        name=name(cell),
        players=leaves(cell),
        depth=depth,
        divided=cell in ledger.open_groups,
        share=share,
        k3=contrast.k3(memo),
        standard_error=ledger.standard_error(cell),
        interval=interval,
        part=part,
        alone=memo[mixture],
        restored=memo[memo.everything - mixture],
        change=change,
        needed=None,
        role=role(memo, mixture, share, (interval, part), change, position, offset=offset),
    )
    return replace(row, needed=_needed(row, memo, whole.value(memo)))


def _needed(share: Share, memo: Memo, whole: Fraction | None) -> int | None:
    """How many sequences would decide whether a share is 0, or, for a large contribution, whether restoring it is
    enough.
    """
    candidate, restored = memo[memo.everything], share.restored
    if candidate is None or restored is None or not whole:
        return None
    sequences = sum(count > 0 for count in candidate.tokens)
    if share.role is Role.UNDECIDED:
        open_intervals = [(float(share.share), share.interval), (float(share.share / whole), share.part)]
    elif share.role is Role.CONTRIBUTES and share.share >= Fraction(SHARE) * whole:
        open_intervals = [(restored.value - candidate.value, share.change)]
    else:
        return None
    answers = [
        sequences_needed(estimate, interval, 0.0, sequences)
        for estimate, interval in open_intervals
        if math.isfinite(interval[0]) and math.isfinite(interval[1]) and interval[0] <= 0 <= interval[1]
    ]
    if share.role is Role.UNDECIDED and math.fsum(candidate.sums) > 0 and carrying(candidate.sums) < CARRYING:
        answers.append(math.ceil(sequences * CARRYING / carrying(candidate.sums)))
    counts = [answer for answer in answers if answer is not None]
    return max(counts) if counts and len(counts) == len(answers) else None


def _parent(tree: Cell, member: Cell) -> Group:
    return next(c for c, _ in walk(tree, 0) if isinstance(c, Group) and any(m is member for m in c.members))
