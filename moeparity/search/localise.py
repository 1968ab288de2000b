"""Localisation: takes a tree of players apart where the divergence is made, that is, groups with a large share."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from moeparity.search.contrast import Bounds
from moeparity.search.ledger import PAIRS, Ledger
from moeparity.search.memo import Memo, Mixture
from moeparity.search.roles import SHARE
from moeparity.search.tree import Cell, Group, walk
from moeparity.search.waterfall import Waterfall, ends, marginal_mixtures, total_of, waterfall_of


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
        memo.ask(mixture for group in groups for mixture in _price(ledger, group))
        closed_groups |= {group for group in groups if not ledger.open(group)}
        remainder = None if budget is None else budget - memo.since(start).mixtures
        least = abs(total or Fraction()) * Fraction(worth)
        groups = _affordable(ledger, _worthy(ledger, least, closed_groups), remainder)
    return waterfall_of(ledger, total, bounds, apart, start)


def _price(ledger: Ledger, group: Group) -> list[frozenset[str]]:
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
        needs = (mixture for group in groups[:count] for mixture in _price(ledger, group))
        if budget is None or len(ledger.memo.additions(needs)) <= budget:
            return list(groups[:count])
    return []
