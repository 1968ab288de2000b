"""What each toggle does, from what its two trials were seen to do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from moeparity.bisection.observed import Observed
from moeparity.bisection.prepare import Plan
from moeparity.bisection.shares.search import Blame
from moeparity.bisection.shares.words import fix_reading, share_reading
from moeparity.bisection.toggles.report import Offset, Swap, ToggleResult, TrialResult
from moeparity.bisection.toggles.words import Effect, reading
from moeparity.bisection.trials import TrialKey, alone, restored
from moeparity.metrics.interval import token_mean
from moeparity.plan.address import pattern
from moeparity.plan.difference import two_sided
from moeparity.plan.sides import CANDIDATE, REFERENCE
from moeparity.plan.toggles import Toggle
from moeparity.search.offsetting import OffsettingPair


def parts(plan: Plan, observed: Observed, report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Every toggle, every swapped block, and what they mean."""
    effects = [measured(toggle, observed) for toggle in plan.trial_toggles]
    blame: Blame | None = observed.answers.get("shares")
    sentences = None if blame is None else _share_sentences(plan, blame)
    pairs = observed.answers.get("toggles", ()) if blame is None else blame.shares.pairs
    offsets = tuple(_offset(pair, plan) for pair in pairs)
    return {
        "toggles": tuple(_toggle_result(effect) for effect in effects),
        "swaps": tuple(_swap(selector, plan, observed) for selector in plan.swaps),
        "reading": tuple(reading(effects, total_kl(observed), sentences, offsets)),
        "offsets": offsets,
    }


def measured(toggle: Toggle, observed: Observed) -> Effect:
    """What a toggle's two trials did."""
    trial = _trial(restored(toggle), CANDIDATE, observed)
    change = (-math.inf, math.inf)
    if trial is not None:
        candidate_sums, restored_sums = observed.logits.sums(CANDIDATE), observed.logits.sums(restored(toggle))
        interval = token_mean(
            restored_sums.kl_candidate_reference - candidate_sums.kl_candidate_reference, candidate_sums.tokens
        )
        change = (interval.low, interval.high)
    return Effect(
        toggle=toggle,
        alone=_trial(alone(toggle), REFERENCE, observed),
        restored=trial,
        change=change,
        restores_all=trial is not None and not observed.changes.nodes[restored(toggle), REFERENCE],
    )


def total_kl(observed: Observed) -> float:
    """KL(candidate || reference) in nats per scored token."""
    return observed.logits.sums(CANDIDATE).mean("kl_candidate_reference")


def _trial(key: TrialKey, base: str, observed: Observed) -> TrialResult | None:
    if (key, base) not in observed.changes.nodes:
        return None
    sums = observed.logits.sums(key)
    return TrialResult(
        kl=sums.mean("kl_candidate_reference"),
        k3=sums.mean("k3"),
        flipped_routes=observed.routes.flip_share(key),
        changed_nodes=len(observed.changes.nodes[key, base]),
    )


def _toggle_result(effect: Effect) -> ToggleResult:
    toggle = effect.toggle
    return ToggleResult(
        name=toggle.name,
        kind=toggle.kind,
        **two_sided(toggle),
        parent=toggle.parent,
        nodes=len(toggle.nodes),
        reference_resting=toggle.resting(REFERENCE),
        candidate_resting=toggle.resting(CANDIDATE),
        alone=effect.alone,
        restored=effect.restored,
        restored_change_low=effect.change[0],
        restored_change_high=effect.change[1],
        restores_all=effect.restores_all,
        had_no_effect=effect.had_no_effect,
        masked=effect.is_masked,
    )


def _offset(pair: OffsettingPair, plan: Plan) -> Offset:
    nodes = {toggle.name: pattern(toggle.nodes) for toggle in plan.toggles}
    return Offset(
        first=pair.first,
        second=pair.second,
        first_nodes=nodes[pair.first],
        second_nodes=nodes[pair.second],
        first_alone=pair.first_alone,
        second_alone=pair.second_alone,
        together=pair.together,
    )


def _swap(selector: str, plan: Plan, observed: Observed) -> Swap:
    nodes, toggle = plan.swaps[selector]
    result = None if toggle is None else _toggle_result(measured(toggle, observed))
    return Swap(selector=selector, nodes=len(nodes), toggle=result)


def _share_sentences(plan: Plan, blame: Blame) -> list[str]:
    """Who is to blame and what to restore, in sentences."""
    dtypes = dict.fromkeys(side.plan.dtype for side in (plan.reference, plan.candidate))
    shares = share_reading(blame.shares, blame.forced, blame.interactions, blame.in_fp32, " and ".join(dtypes))
    return [*shares, *fix_reading(blame.fixes, blame.kept, costs=bool(plan.recipe.costs))]
