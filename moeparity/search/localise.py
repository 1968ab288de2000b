"""Where in a tree of players the divergence is made: groups are taken apart where their share is."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from moeparity.search.contrast import Bounds
from moeparity.search.ledger import Ledger
from moeparity.search.memo import Oracle
from moeparity.search.roles import SHARE
from moeparity.search.tree import Cell, Group, walk
from moeparity.search.waterfall import PAIRS, Waterfall, beside, ends, told, whole


def localise(
    oracle: Oracle,
    tree: Cell,
    bounds: Bounds,
    *,
    worth: float = SHARE,
    budget: int | None = None,
    pairs: int = PAIRS,
    seed: int = 0,
) -> Waterfall:
    """The waterfall of a tree, opened only where |share| is at least `worth` of the whole divergence.

    `tree.halves` of the layers makes it a bisection that follows every culprit. Shares are those of `waterfall` for
    the same tree, pairs and seed, as long as no order is left out: the same orders, of which only the mixtures at the
    borders of opened groups are evaluated. Each round opens all groups that are worth it in one batch, so there are at
    most as many batches as levels and two; opening halves costs a mixture for each order, and four that show the
    halves alone and restored. `budget` bounds the mixtures asked in all: groups with the largest shares go first, and
    what can't be paid stays whole; the tree's own members always get their shares. Rounds are more then.
    A group whose parts cancel within it has a small share and stays whole.
    Raises ValueError as `waterfall` does.
    """
    before = oracle.spent
    ledger = Ledger(oracle, tree, pairs, seed)
    oracle.ask(ends(oracle))
    total = whole(oracle)
    closed: set[Cell] = set()
    chosen = [tree] if isinstance(tree, Group) and total is not None else []
    while chosen:
        oracle.ask(mixture for group in chosen for mixture in _price(ledger, group))
        closed |= {group for group in chosen if not ledger.open(group)}
        left = None if budget is None else budget - oracle.since(before).mixtures
        chosen = _affordable(ledger, _worthy(ledger, abs(total or Fraction()) * Fraction(worth), closed), left)
    return told(ledger, total, bounds, before)


def _price(ledger: Ledger, group: Group) -> list[frozenset[str]]:
    return [*ledger.needs(group), *beside(ledger.oracle, group.members)]


def _worthy(ledger: Ledger, least: Fraction, closed: set[Cell]) -> list[Group]:
    """The groups that are seen, not opened and worth it, the largest share first."""
    seen = (cell for cell, _ in walk(ledger.tree, inside=ledger.opened))
    groups = [g for g in seen if isinstance(g, Group) and g not in ledger.opened and g not in closed]
    sizes = {group: abs(ledger.share(group).value(ledger.oracle) or Fraction()) for group in groups}
    worthy = [group for group in groups if sizes[group] >= least and sizes[group]]
    return sorted(worthy, key=sizes.__getitem__, reverse=True)


def _affordable(ledger: Ledger, groups: Sequence[Group], left: int | None) -> list[Group]:
    """The first groups whose mixtures, all together, are no more than `left`."""
    for count in range(len(groups), 0, -1):
        needs = (mixture for group in groups[:count] for mixture in _price(ledger, group))
        if left is None or len(ledger.oracle.unknown(needs)) <= left:
            return list(groups[:count])
    return []
