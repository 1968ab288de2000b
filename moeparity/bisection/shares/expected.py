"""Estimates how many mixtures the searches of `attribute:` will ask for, at least and at most, before any is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moeparity.bisection.plan import Plan
from moeparity.bisection.shares.search import INTERACTING, cell_of
from moeparity.plan.toggles import Toggle
from moeparity.search.ledger import mixtures_needed
from moeparity.search.tree import Cell, Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixtures:
    """The fewest and the most mixtures that may be asked for.

    Fewest: no expert set differs, and nothing is taken apart. Most: shares with forced experts too, all toggles taken
    apart and all sets of fixes tried, each as far as its budget goes.
    """

    fewest: int
    most: int

    def __str__(self) -> str:
        """`22 to 190 mixtures`."""
        numbers = f"{self.fewest:,}" if self.fewest == self.most else f"{self.fewest:,} to {self.most:,}"
        return f"{numbers} mixture{'s' * (self.most != 1)}"


def expected_mixtures(plan: Plan) -> Mixtures:
    """The mixtures of a plan with `attribute:`, beyond those of its first pass."""
    whole = plan.whole_toggles
    if not whole:
        return Mixtures(fewest=0, most=0)
    budget, count = plan.recipe.mixtures, len(whole)
    shares = mixtures_needed(_tree(whole, opened=False))
    # The first pass runs each toggle alone and restored. With one toggle or two, these are the same mixtures.
    in_first_pass = 1 if count == 1 else 2 if count == 2 else 2 * count
    subsets = min(1 << count, budget)
    inside = min(mixtures_needed(_tree(whole, opened=True)) - shares, budget)
    pairs = min(count, INTERACTING) * (min(count, INTERACTING) - 1) // 2
    fixes = max(subsets - shares, 0)
    return Mixtures(fewest=max(shares - in_first_pass, 0), most=2 * shares - in_first_pass + inside + fixes + pairs)


def _tree(whole: Sequence[Toggle], *, opened: bool) -> Cell:
    cells: tuple[Cell, ...] = tuple(cell_of(toggle) if opened else toggle.name for toggle in whole)
    return Group("all", cells) if len(cells) > 1 else cells[0]
