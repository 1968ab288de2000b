"""What each toggle does, from what its two trials were seen to do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from moeparity.bisection.envelope.legal import is_legal
from moeparity.bisection.observed import Observed
from moeparity.bisection.plan import Plan
from moeparity.bisection.shares.search import Blame
from moeparity.bisection.shares.words import fix_reading, share_reading
from moeparity.bisection.toggles.effect import Effect, worth_splitting
from moeparity.bisection.toggles.report import Offset, Swap, ToggleResult, TrialResult
from moeparity.bisection.toggles.words import reading
from moeparity.bisection.trials import TrialKey, alone, restored
from moeparity.metrics.interval import tail_mean
from moeparity.metrics.tokens import SequenceSums
from moeparity.plan.address import pattern
from moeparity.plan.difference import two_sided
from moeparity.plan.evidence import evidence
from moeparity.plan.sides import CANDIDATE, REFERENCE
from moeparity.plan.toggles import Toggle
from moeparity.search.contrast import Interval, surely_above
from moeparity.search.offsetting import OffsettingPair
from moeparity.search.roles import LEAST_SATURATION


def parts(plan: Plan, observed: Observed, report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Every toggle, every swapped block, and what they mean."""
    effects = [measured(toggle, plan, observed) for toggle in plan.trial_toggles]
    blame: Blame | None = observed.answers.get("shares")
    sentences = None if blame is None else _share_sentences(plan, blame, {e.toggle.name: e.label for e in effects})
    pairs = observed.answers.get("toggles", ()) if blame is None else blame.shares.pairs
    offsets = tuple(_offset(pair, plan) for pair in pairs)
    return {
        "toggles": tuple(_toggle_result(effect) for effect in effects),
        "swaps": tuple(_swap(selector, plan, observed) for selector in plan.swaps),
        "reading": tuple(reading(effects, total_kl(observed), sentences, offsets)),
        "offsets": offsets,
    }


def worth_taking_apart(plan: Plan, observed: Observed) -> list[Toggle]:
    """The toggles that are worth a further pass."""
    return worth_splitting([measured(toggle, plan, observed) for toggle in plan.toggles], total_kl(observed))


def measured(toggle: Toggle, plan: Plan, observed: Observed) -> Effect:
    """What a toggle's two trials did."""
    trials = _trial(alone(toggle), REFERENCE, observed), _trial(restored(toggle), CANDIDATE, observed)
    whole = observed.logits.sums(CANDIDATE)
    costs = [
        None if trial is None else observed.logits.sums(key)
        for trial, key in zip(trials, (alone(toggle), restored(toggle)), strict=True)
    ]
    return Effect(
        toggle=toggle,
        alone=trials[0],
        restored=trials[1],
        change=_less(costs[1], whole),
        is_large=all(surely_above(_less(cost, whole, LEAST_SATURATION)) for cost in costs),
        is_legal=is_legal(toggle, observed),
        evidence=evidence(toggle.members, plan.reference.plan, plan.candidate.plan),
        restores_all=trials[1] is not None and not observed.changes.nodes[restored(toggle), REFERENCE],
    )


def _less(cost: SequenceSums | None, whole: SequenceSums, part: float = 1.0) -> Interval:
    """The 95 % interval of a trial's KL less so much of the candidate's, paired over sequences, nats per token."""
    if cost is None:
        return -math.inf, math.inf
    interval = tail_mean(cost.kl_candidate_reference - part * whole.kl_candidate_reference, whole.tokens)
    return interval.low, interval.high


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
        reference_evidence=effect.evidence[0],
        candidate_evidence=effect.evidence[1],
        parent=toggle.parent,
        nodes=len(toggle.nodes),
        reference_resting=toggle.resting(REFERENCE),
        candidate_resting=toggle.resting(CANDIDATE),
        alone=effect.alone,
        restored=effect.restored,
        restored_change_low=effect.change[0],
        restored_change_high=effect.change[1],
        restores_all=effect.restores_all,
        large=effect.is_large,
        legal=effect.is_legal,
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
    result = None if toggle is None else _toggle_result(measured(toggle, plan, observed))
    return Swap(selector=selector, nodes=len(nodes), toggle=result)


def _share_sentences(plan: Plan, blame: Blame, labels: Mapping[str, str]) -> list[str]:
    """Who is to blame and what to restore, in sentences; every toggle by its label."""
    dtype = " and ".join(dict.fromkeys(side.plan.dtype for side in (plan.reference, plan.candidate)))
    label = labels.__getitem__
    shares = share_reading(
        blame.shares.renamed(label),
        None if blame.forced is None else blame.forced.renamed(label),
        [pair.renamed(label) for pair in blame.interactions],
        blame.in_fp32,
        dtype,
        None if blame.apart is None else blame.apart.renamed(label),
    )
    allowed = None if blame.may_stay is None else blame.may_stay.renamed(label)
    return [*shares, *fix_reading(blame.fixes.renamed(label), allowed, costs=bool(plan.recipe.costs))]
