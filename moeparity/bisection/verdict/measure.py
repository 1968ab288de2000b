"""The verdict on the candidate, and its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from moeparity.bisection.arrival.measure import arrival
from moeparity.bisection.degeneracy.words import sound
from moeparity.bisection.observed import Observed
from moeparity.bisection.prepare import Plan
from moeparity.bisection.verdict.report import Metrics
from moeparity.metrics.tokens import SequenceSums
from moeparity.metrics.verdict import Verdict
from moeparity.plan.sides import CANDIDATE


def parts(plan: Plan, observed: Observed, report: Mapping[str, Any]) -> Mapping[str, Any]:
    """The verdict and the metrics."""
    return {
        "verdict": sound(_verdict(plan, observed), report["degeneracy"]),
        "metrics": _metrics(observed.logits.sums(CANDIDATE)),
    }


def _verdict(plan: Plan, observed: Observed) -> Verdict:
    verdict = observed.logits.sums(CANDIDATE).verdict(plan.gate)
    draws = arrival(plan, observed)
    if draws is None or not draws.disputed:
        return verdict
    return replace(verdict, status="inconclusive", reason="draws of its order of arrival decide differently")


def _metrics(sums: SequenceSums) -> Metrics:
    return Metrics(
        k1=sums.mean("k1"),
        k2=sums.mean("k2"),
        k3=sums.mean("k3"),
        kl=sums.mean("kl_candidate_reference"),
        kl_reverse=sums.mean("kl_reference_candidate"),
        mean_abs_delta=sums.mean("abs_delta"),
        max_abs_delta=float(sums.max_abs_delta.max()),
        top1_agreement=sums.mean("top1"),
        nonfinite_tokens=int(sums.nonfinite.sum()),
        unequal_tokens=int(sums.unequal.sum()),
    )
