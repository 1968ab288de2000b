"""What part of the whole divergence a share is, with an interval of its own."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping

from moeparity.search.contrast import Bounds, difference
from moeparity.search.ledger import Ledger
from moeparity.search.oracle import Oracle
from moeparity.search.tree import Cell, Group, name
from moeparity.search.waterfall import PAIRS

Interval = tuple[float, float]

CARRYING = 3.0
"""Where the whole is carried by fewer sequences than this, its parts have no bounds: a few more would turn them over.

Sequences count as (sum w)^2 / sum w^2 (Kish's effective sample size).
"""


def proportions(
    oracle: Oracle, tree: Cell, bounds: Bounds, *, pairs: int = PAIRS, seed: int = 0
) -> dict[str, Interval]:
    """The 95 % interval of share / whole for each member of the tree, pure numbers; empty where nothing is shared out.

    The whole varies from sequence to sequence as the share does, so this is no share's interval over the whole's
    estimate: a steady share of a whole that a few sequences carry is known well in nats and badly as a part. Sequences
    are resampled with both their sums, as in any ratio (`bounds` of the share's sums over the whole's).
    The same orders as `waterfall` for the same tree, pairs and seed: after it, nothing is asked.
    """
    ledger = Ledger(oracle, tree, pairs, seed)
    whole = difference(oracle.everything, frozenset()).sums(oracle)
    if whole is None or not math.fsum(whole) > 0 or (isinstance(tree, Group) and not ledger.open(tree)):
        return {}
    members = tree.members if isinstance(tree, Group) else (tree,)
    found: Mapping[str, list[float] | None] = {name(cell): ledger.share(cell).sums(oracle) for cell in members}
    return {cell: _part(share, whole, bounds) for cell, share in found.items() if share is not None}


def _part(share: list[float], whole: list[float], bounds: Bounds) -> Interval:
    if all(math.isclose(one, other, rel_tol=1e-12) for one, other in zip(share, whole, strict=True)):
        # All of it in every sequence, as the share of a toggle that is the only one: nothing varies.
        return 1.0, 1.0
    if any(share) and math.fsum(whole) ** 2 < CARRYING * math.fsum(total * total for total in whole):
        return -math.inf, math.inf
    # A sequence without divergence still counts, with whatever the share is there.
    return bounds(share, [max(total, sys.float_info.min) for total in whole])
