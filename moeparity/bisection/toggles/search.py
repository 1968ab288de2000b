"""Searches for pairs of toggles that offset each other, among those whose restoring raises the divergence."""

from __future__ import annotations

from typing import Final

from moeparity.bisection.mixtures import Mixtures
from moeparity.bisection.observed import Observed
from moeparity.bisection.plan import Plan
from moeparity.bisection.resume.pieces import PieceStore
from moeparity.bisection.shares.search import over_sequences
from moeparity.bisection.toggles.effects import measured, total_kl
from moeparity.bisection.trials import restored
from moeparity.bisection.watch import Search
from moeparity.plan.toggles import Toggle
from moeparity.progress import Callback
from moeparity.search.memo import Memo
from moeparity.search.offsetting import OffsettingPair, offsetting


def search(
    plan: Plan, observed: Observed, progress: Callback | None, store: PieceStore | None
) -> tuple[OffsettingPair, ...] | None:
    """The pairs. None for a recipe with `attribute:`, whose shares find them, and if fewer than two toggles raise the
    KL when restored. Runs a pass only if two surely do.
    """
    if plan.recipe.attribute:
        return None
    whole = plan.whole_toggles
    # Intervals take long with many sequences, and a toggle that does not raise the KL at all needs none.
    raising = [toggle for toggle in whole if _raises(toggle, observed)]
    if len(raising) < 2:
        return None
    mixtures = Mixtures(plan, progress=progress, store=store, name="offsets")
    mixtures.learn(observed)
    memo = Memo(tuple(toggle.name for toggle in whole), mixtures)
    return offsetting(
        memo, {toggle.name: measured(toggle, plan, observed).change for toggle in raising}, over_sequences
    )


def _raises(toggle: Toggle, observed: Observed) -> bool:
    """Whether the KL is higher with this toggle restored; False if an op refuses that or the KL is not finite."""
    if restored(toggle) not in observed.logits.walkers:
        return False
    return observed.logits.sums(restored(toggle)).mean("kl_candidate_reference") > total_kl(observed)


OFFSETTING: Final[Search[tuple[OffsettingPair, ...]]] = Search("toggles", search)
