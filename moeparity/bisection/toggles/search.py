"""Which toggles offset each other, of those that raise the divergence when they are restored."""

from __future__ import annotations

from moeparity.bisection.mixtures import Mixtures
from moeparity.bisection.observed import Observed
from moeparity.bisection.plan import Plan
from moeparity.bisection.resume.pieces import PieceStore
from moeparity.bisection.shares.search import over_sequences
from moeparity.bisection.toggles.measure import measured, total_kl
from moeparity.bisection.trials import restored
from moeparity.plan.toggles import Toggle
from moeparity.progress import Callback
from moeparity.search.memo import Memo
from moeparity.search.offsetting import OffsettingPair, offsetting


def search(
    plan: Plan, observed: Observed, progress: Callback | None, store: PieceStore | None
) -> tuple[OffsettingPair, ...] | None:
    """The pairs; None for a recipe with `attribute:`, whose shares know them, and where no two raise the KL when
    restored. It takes a pass only where two surely do.
    """
    if plan.recipe.attribute:
        return None
    whole = [toggle for toggle in plan.trial_toggles if toggle.parent is None]
    # An interval is dear with many sequences, and says of none of the others that it surely raises the KL.
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
    """Whether the KL is higher with this one restored; False where an op refuses that, or where it is not finite."""
    if restored(toggle) not in observed.logits.walkers:
        return False
    return observed.logits.sums(restored(toggle)).mean("kl_candidate_reference") > total_kl(observed)
