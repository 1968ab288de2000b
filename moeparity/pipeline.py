"""READ FIRST: from a recipe's path to a Report, the steps in order."""

from __future__ import annotations

from pathlib import Path

from moeparity.observation import observe
from moeparity.plan import prepare
from moeparity.report.model import Report
from moeparity.summary import summarise


def bisect(recipe: str | Path, *, device: str = "auto") -> Report:
    """Run a recipe: is it parity, where does it start, which choice is to blame.

    Everything is read, checked and bound before the first tensor is computed; then both sides, every difference alone
    and every difference restored walk the graph together in one pass over the weights; then what was seen is put
    into words. Raises MoeparityError for whatever is wrong with the recipe, its profiles, checkpoint or tokens.
    """
    plan = prepare(Path(recipe), device=device)
    observed = observe(plan)
    return summarise(plan, observed)
