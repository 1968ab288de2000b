"""Measures what a toggle's two trials did."""

from __future__ import annotations

import math

from moeparity.bisection.envelope.legal import is_legal
from moeparity.bisection.observed import Observed
from moeparity.bisection.plan import Plan
from moeparity.bisection.toggles.data import TrialResult
from moeparity.bisection.toggles.effect import Effect
from moeparity.bisection.trials import TrialKey, alone, restored
from moeparity.metrics.interval import tail_mean
from moeparity.metrics.tokens import SequenceSums
from moeparity.plan.evidence import evidence
from moeparity.plan.sides import CANDIDATE, REFERENCE
from moeparity.plan.toggles import Toggle
from moeparity.search.contrast import Interval, surely_above
from moeparity.search.roles import LEAST_SATURATION


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


def total_kl(observed: Observed) -> float:
    """KL(candidate || reference) in nats per scored token."""
    return observed.logits.sums(CANDIDATE).mean("kl_candidate_reference")


def _less(cost: SequenceSums | None, whole: SequenceSums, part: float = 1.0) -> Interval:
    """The 95 % interval of a trial's KL minus `part` times the candidate's, paired over sequences, nats per token."""
    if cost is None:
        return -math.inf, math.inf
    interval = tail_mean(cost.kl_candidate_reference - part * whole.kl_candidate_reference, whole.tokens)
    return interval.low, interval.high


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
