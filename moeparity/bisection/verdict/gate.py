"""The gate's metric of one walker against the reference, and what is decided of it."""

from __future__ import annotations

from moeparity.bisection.prepare import Plan
from moeparity.metrics.interval import sequence_mean, token_mean
from moeparity.metrics.tokens import SequenceSums
from moeparity.metrics.verdict import Gate, Interval, Verdict, judge


def gate_value(plan: Plan, sums: SequenceSums) -> Interval:
    """The gate's metric of a walker with its interval, as the recipe's gate takes the mean."""
    mean = token_mean if plan.recipe.gate.reduce == "token" else sequence_mean
    return mean(sums.k3, sums.tokens)


def judged(plan: Plan, sums: SequenceSums) -> Verdict:
    """The verdict on a walker, from its sums against the reference."""
    gate = plan.recipe.gate
    return judge(
        gate_value(plan, sums),
        Gate(metric=gate.metric, below=gate.below, reduce=gate.reduce),
        bit_equal=not bool(sums.unequal.any()),
        nonfinite=int(sums.nonfinite.sum()),
    )
