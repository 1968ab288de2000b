"""What a good run differs in already: nodes that are no roots of the candidate's trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from moeparity.bisection.observed import Observed
from moeparity.bisection.plan import Plan
from moeparity.bisection.resume.pieces import PieceStore
from moeparity.bisection.watch import Search
from moeparity.progress import Callback

Known = Mapping[str, tuple[float, float]]
"""By node, the local errors of the candidate and of the good run."""


def search(plan: Plan, observed: Observed, progress: Callback | None, store: PieceStore | None) -> Known | None:
    """The nodes that differ in the good run as much as in the candidate; None if the recipe names no good run."""
    if plan.good_run is None:
        return None
    return plan.good_run.differences(plan.reference.plan, plan.model.weights)


BASELINE: Final[Search[Known]] = Search("baseline", search)
