"""Measures what a toggle's two trials did."""

from __future__ import annotations

import math
from collections.abc import Sequence

from moeparity.bisection.context import filled
from moeparity.bisection.envelope.legal import is_legal
from moeparity.bisection.observed import Observed
from moeparity.bisection.study import Study
from moeparity.bisection.toggles.data import ToggleResult, TrialResult
from moeparity.bisection.trials import TrialKey, alone, restored
from moeparity.metrics.interval import tail_mean
from moeparity.metrics.tokens import SequenceSums
from moeparity.plan.evidence import evidence
from moeparity.plan.sides import CANDIDATE, REFERENCE
from moeparity.plan.toggles import Toggle
from moeparity.search.contrast import Interval, surely_above, surely_below
from moeparity.search.roles import LEAST_SATURATION, SHARE


def measured(toggle: Toggle, study: Study, observed: Observed) -> ToggleResult:
    """What a toggle's two trials did."""
    keys = (alone(toggle), restored(toggle))
    trials = [_trial(key, base, observed) for key, base in zip(keys, (REFERENCE, CANDIDATE), strict=True)]
    whole = observed.logits.sums(CANDIDATE)
    costs = [None if trial is None else observed.logits.sums(key) for trial, key in zip(trials, keys, strict=True)]
    had_no_effect, masked = shown_by(*trials)
    levels = evidence(toggle.members, study.reference.plan, study.candidate.plan)
    low, high = _less(costs[1], whole)
    return filled(
        ToggleResult,
        toggle,
        reference_evidence=levels[0],
        candidate_evidence=levels[1],
        nodes=len(toggle.nodes),
        reference_resting=toggle.resting(REFERENCE),
        candidate_resting=toggle.resting(CANDIDATE),
        alone=trials[0],
        restored=trials[1],
        restored_change_low=low,
        restored_change_high=high,
        restores_all=trials[1] is not None and not observed.changes.nodes[keys[1], REFERENCE],
        large=all(surely_above(_less(cost, whole, LEAST_SATURATION)) for cost in costs),
        legal=is_legal(toggle, observed),
        had_no_effect=had_no_effect,
        masked=masked,
    )


def shown_by(alone: TrialResult | None, restored: TrialResult | None) -> tuple[bool, bool]:
    """Whether a toggle had no effect, and whether it is masked, as `ToggleResult` defines both."""
    changed = [None if trial is None else trial.changed_nodes > 0 for trial in (alone, restored)]
    return changed == [False, False], changed == [True, False]


def worth_splitting(toggles: Sequence[ToggleResult], total: float) -> list[str]:
    """The names of the toggles to take apart next: not split yet, and worth it.

    A toggle is worth it if alone it costs at least `SHARE` of the whole KL, `total`, or if restoring it surely lowers
    the KL.
    """
    parents = {toggle.parent for toggle in toggles}
    return [
        toggle.name
        for toggle in toggles
        if toggle.name not in parents
        and not toggle.had_no_effect
        and (surely_below(toggle.change) or (toggle.alone is not None and toggle.alone.kl >= SHARE * total))
    ]


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
