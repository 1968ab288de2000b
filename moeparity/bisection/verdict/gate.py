"""The gate's metric of one walker against the reference, and what is decided of it."""

from __future__ import annotations

from moeparity.bisection.prepare import Plan
from moeparity.metrics.interval import sequence_mean, token_mean
from moeparity.metrics.tokens import SequenceSums
from moeparity.metrics.verdict import Gate, Verdict, judge


def judged(plan: Plan, sums: SequenceSums) -> Verdict:
    """The verdict on a walker, from its sums against the reference."""
    gate = plan.recipe.gate
    mean = token_mean if gate.reduce == "token" else sequence_mean
    return judge(
        mean(sums.k3, sums.tokens),
        Gate(metric=gate.metric, below=gate.below, reduce=gate.reduce),
        bit_equal=not bool(sums.unequal.any()),
        nonfinite=int(sums.nonfinite.sum()),
    )
