"""Which toggles offset each other, of those that raise the divergence when they are restored."""

from __future__ import annotations

from moeparity.bisection.mixtures import Mixtures
from moeparity.bisection.observed import Observed
from moeparity.bisection.prepare import Plan
from moeparity.bisection.shares.search import bounds
from moeparity.bisection.toggles.measure import measured
from moeparity.progress import Callback
from moeparity.search.memo import Memo
from moeparity.search.offsetting import OffsettingPair, offsetting


def search(plan: Plan, observed: Observed, progress: Callback | None) -> tuple[OffsettingPair, ...] | None:
    """The pairs; None for a recipe with `attribute:`, whose shares know them. It takes a pass only where at least two
    toggles surely raise the KL when restored.
    """
    if plan.recipe.attribute:
        return None
    whole = [toggle for toggle in plan.trial_toggles if toggle.parent is None]
    mixtures = Mixtures(plan, progress=progress)
    mixtures.learn(observed)
    memo = Memo(tuple(toggle.name for toggle in whole), mixtures)
    return offsetting(memo, {toggle.name: measured(toggle, observed).change for toggle in whole}, bounds)
