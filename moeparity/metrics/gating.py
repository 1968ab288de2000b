"""Which metrics a gate takes, and their values at parity; needs no torch."""

from __future__ import annotations

from collections.abc import Mapping

from moeparity.errors import listed
from moeparity.metrics.declaration import Metric
from moeparity.metrics.registry import METRICS
from moeparity.metrics.verdict import Gate

TWO_SIDED: Mapping[str, float] = {
    **dict.fromkeys(("k1", "delta", "log_ppl_diff", "chi2", "chi2_clamped", "chi2_seq"), 0.0),
    **dict.fromkeys(("ratio_less_1", "ppl_ratio_less_1", "ratio_less_1_reinforce"), 0.0),
    **dict.fromkeys(("zeroed_ratio", "sequence_ratio_zeroed", "sequence_mask", "kish"), 1.0),
    **dict.fromkeys(("truncated", "truncated_mean", "truncated_at_3"), 1.0),
}
"""Quantities whose means can lie on both sides of their value at parity, so that a one-sided bound says nothing."""

_OF_ONE_SIDE = frozenset(
    {"rollout", "neg_rollout", "trainer", "trainer_ppl", "rollout_ppl", "entropy", "approx_entropy"}
)
"""Quantities of one side alone, or of the text: no value of theirs means parity."""

_KINDS = {"of totals": "formula in totals"}


def declared(gate: Gate) -> Metric:
    """The metric that a gate bounds; with `reduce: sequence`, the sequence variant of a mean per token."""
    metric = METRICS[gate.metric]
    if gate.reduce == "sequence" and metric.reduce.kind == "token mean":
        reduce = metric.reduce.model_copy(update={"kind": "sequence mean"})
        return metric.model_copy(update={"reduce": reduce})
    return metric


def parity(metric: Metric) -> float:
    """The metric's value if both sides give the same log-probabilities."""
    return TWO_SIDED.get(metric.reduce.of, 0.0) + metric.reduce.offset


def gated_name(name: str) -> str:
    """The name of what a gate on this metric bounds: `k3`, `|k1|`, `|mean_ratio - 1|`, `token_mult_prob_error - 1`."""
    metric = METRICS[name]
    at = parity(metric)
    distance = f"{name} - {at:g}" if at else name
    return f"|{distance}|" if metric.reduce.of in TWO_SIDED else distance


def refusal(metric: Metric) -> str:
    """Why a gate does not take the metric; "" if it does."""
    if not metric.reduce.has_interval:
        kind = _KINDS.get(metric.reduce.kind, metric.reduce.kind)
        return f"{metric.name} is a {kind}, of which there is no interval over sequences"
    if metric.reduce.of in _OF_ONE_SIDE:
        return f"{metric.name} has no direction: {metric.estimates.partition(';')[0]}, and no value of it is parity"
    return ""


def refusal_of_bound(metric: Metric, below: float) -> str:
    """Why a bound can never be met; "" if it can."""
    at = parity(metric)
    return "" if below > at else f"{metric.name} is {at:g} at parity; a bound above that is expected, not {below:g}"


def gated() -> tuple[str, ...]:
    """The names of all metrics that a gate takes."""
    return tuple(name for name, metric in METRICS.items() if not refusal(metric))


def gated_in_recipes() -> tuple[str, ...]:
    """The names of those metrics that need nothing but both sides' log-probabilities."""
    return tuple(name for name in gated() if not METRICS[name].needs)


def expected(names: tuple[str, ...]) -> str:
    """For messages: `expected a mean of common: k1, ...; or of a framework: verl/kl, ...`."""
    ours = [name for name in names if METRICS[name].set == "common"]
    return f"expected {listed(ours)}, or of a framework {listed(name for name in names if name not in ours)}"
