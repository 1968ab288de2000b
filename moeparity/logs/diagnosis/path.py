"""Tier 2: for columns that mean the same, how large the difference is beside published ones, and where it lies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist

import torch
from torch import Tensor

from moeparity.logs.diagnosis.finding import LINE, Evidence, Finding, FindingVerdict, judged
from moeparity.logs.diagnosis.intervals import above, bounds, explains, mean, rate, share
from moeparity.logs.diagnosis.state import State

GROWTH = 1.25
"""A sequence is said to differ more in its second half if |delta| there is at least this many times that of the first.
"""

# The chance that some sequence of a log without a cause is called an outlier.
_ALARM = 0.01
# 1 / the 75 % quantile of a normal variable: turns the median of |deviations| into a standard deviation.
_MAD = 1.4826
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """A published range of k3, nats per token."""

    name: str
    low: float
    high: float
    source: str


FLOORS = (
    Floor(name="batch-invariant kernels", low=0.0, high=1e-9, source="SGLang CI"),
    Floor(name="dense bf16", low=1e-5, high=1e-3, source="miles; R3's control 6.4e-4"),
    Floor(name="MoE bf16", low=7e-5, high=1.5e-3, source="Fireworks 7e-5; R3, prime-rl 3e-4 to 1.5e-3"),
    Floor(name="fp8 rollout", low=1.4e-3, high=5e-3, source="NeMo-RL, Qwen3.5"),
)
UNHEALTHY = 1.5e-2
"""prime-rl's bar for a new model, the highest published one for k3."""


_outlying = partial(Finding, tier="inference path", name="outlier sequences")


def inference_path(state: State) -> tuple[Finding, ...]:
    """All findings of tier 2."""
    return (size(state), tail(state), confident(state), growth(state), concentration(state), flips(state))


def size(state: State) -> Finding:
    """Compares k3 with published values.

    Statistic: mean k3 with its bootstrap-t interval over sequences. Named above prime-rl's merge bar of 0.015, which no
    reported rounding exceeds for a whole log; ruled out below 0.005, where the published ranges end. Floors depend on
    the model, the hardware and the parallel layout: your own floor, the same engine twice, is the better measure.
    """
    evidence = mean("k3", state.sums("k3"), state.sums("usable"), "nats per token")
    near = [f"{f.name} ({f.source})" for f in FLOORS if f.low <= evidence.value <= f.high]
    verdict = above(evidence, UNHEALTHY)
    if verdict == "ruled out" and above(evidence, FLOORS[-1].high) != "ruled out":
        verdict = "undecided"
    where = f"of the size published for {' and '.join(near)}" if near else "inside no published range"
    reason = {
        "named": f"k3 lies above {UNHEALTHY:g}, more than rounding is known to give: other weights, other state or "
        "another setting.",
        "ruled out": f"k3 is {where}.",
        "undecided": f"k3 is {where}. Whether it lies below {FLOORS[-1].high:g}, where the published ranges end, is "
        "open."
        if evidence.value < FLOORS[-1].high
        else f"k3 is {where}: they end at {FLOORS[-1].high:g}.",
        "not tested": "No token to measure.",
    }[verdict]
    advice = (
        "Check that both sides hold the same weights: hash them after the refit, score one batch twice with one engine."
    )
    return Finding(
        tier="inference path",
        name="size",
        verdict=verdict,
        reason=reason,
        evidence=(evidence,),
        advice=advice
        if verdict == "named"
        else "Measure your own floor: the same engine twice, in another batch order.",
    )


def tail(state: State) -> Finding:
    """Describes which fraction of k3 the largest 0.1 % and 1 % of the tokens carry; not judged.

    With normal noise of one size the top 1 % carry 7 %; in published MoE mismatch they carry 80 %.
    """
    tops = tuple(
        Evidence(name=f"k3 of the top {100 * part:g}% of the tokens", value=state.k3.top(part))
        for part in (0.001, 0.01)
    )
    reason = "With normal noise of one size the top 1% carry 7%; with published MoE mismatch, 80%."
    return Finding(tier="inference path", name="heavy tail", verdict="described", reason=reason, evidence=tops)


def confident(state: State) -> Finding:
    """Tests whether tokens of which a side is sure carry the difference.

    Statistic: k3 of tokens with P > 0.9 on a side, over all k3. Perturbed logits move log P by at most the perturbation
    times 1 - P, so under rounding noise such tokens carry little. A value lost from a state, or a kernel that switches
    its tiling, moves whole logits and takes P away from sure tokens.
    """
    evidence = share("k3 of tokens with P > 0.9", state.sums("confident_k3"), state.sums("k3"))
    verdict = explains(evidence)
    reasons: dict[FindingVerdict, str] = {
        "named": "Tokens that a side gives P > 0.9 carry most of k3; small perturbations of logits can't do that.",
        "ruled out": "Tokens of low P carry k3, as they do under rounding.",
        "undecided": "Whether confident or uncertain tokens carry k3 is open.",
        "not tested": "k3 is 0.",
    }
    advice = "Look at those tokens: a kernel chosen by batch size, a router that flips, a lost or stale cache state."
    return judged("inference path", "confident tokens", verdict, reasons, (evidence,), advice=advice)


def growth(state: State) -> Finding:
    """Tests whether the difference grows along a sequence: a cache in a low dtype, a recurrent state, decode against
    prefill.

    Statistic: the geometric mean of |delta| in the second half of each sequence's tokens over that in the first,
    compared within bins of P; 1 if the position has no effect. Named if the whole interval lies above 1.25.
    """
    evidence = _growth(state)
    verdict = above(evidence, GROWTH)
    reasons: dict[FindingVerdict, str] = {
        "named": "|delta| of tokens of equal P is greater in the second half of the sequences.",
        "ruled out": f"|delta| does not grow along the sequences by a factor of {GROWTH}.",
        "undecided": f"Whether |delta| grows along the sequences by a factor of {GROWTH} is open.",
        "not tested": "The sequences have no two halves.",
    }
    advice = (
        "Compare prefill with decode of one engine on the same tokens; then the KV cache's dtype, chunked prefill, a "
        "recurrent or convolution state, rope in a low dtype."
    )
    return judged("inference path", "growth with position", verdict, reasons, (evidence,), advice=advice)


def _growth(state: State) -> Evidence:
    residual, counts = _residuals(state)
    whole = (counts > 0).all(1)
    means = residual[whole] / counts[whole]
    if not len(means):
        return Evidence(name="factor", value=math.nan, low=-math.inf, high=math.inf)
    log_factor = mean("log factor", means[:, 1] - means[:, 0], torch.ones(len(means), dtype=torch.float64))
    value, low, high = (_exp(bound) for bound in (log_factor.value, *bounds(log_factor)))
    return Evidence(name="factor", value=value, low=low, high=high, level=log_factor.level)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _residuals(state: State) -> tuple[Tensor, Tensor]:
    """Sums of log |delta| minus its mean at that P, and numbers of tokens, for each half of each sequence, fp64 [B,
    2] each.
    """
    counts, logs = state.scale.unbind(-1)
    expected = logs.sum((0, 1)) / counts.sum((0, 1)).clamp(min=1)
    return (logs - counts * expected).sum(-1), counts.sum(-1)


def concentration(state: State) -> Finding:
    """Tests whether outlier sequences differ as a whole: a state that went wrong in a request, or other weights
    unnoticed.

    Statistic: each sequence's mean of log |delta|, within bins of P, times the square root of its number of tokens; its
    distance from the median in units of 1.4826 times the median distance (MAD). An outlier lies above the normal
    quantile that some sequence of a log without a cause exceeds with a chance of 1 %, and has at least twice the
    |delta| of the others. Named if the outliers carry more than half of k3, else described: texts differ in how often
    they flip a router, which makes outliers that explain little. A few large events hardly move a mean of logarithms,
    while a wrong state moves every token. Such sequences have to be fewer than half, since the median has to be one of
    the others.
    """
    residual, counts = (part.sum(1) for part in _residuals(state))
    population = int((counts > 0).sum())
    if population < 8:
        return _outlying(verdict="not tested", reason="Fewer than 8 sequences.")
    rows, greater = _outliers(residual, counts), _greater(residual, counts)
    part = _part(state, rows)
    if part <= LINE < _part(state, greater):
        return _open(state, len(rows), greater, population)
    if not len(rows):
        reason = "No sequence differs as a whole from the others."
        return _outlying(verdict="ruled out", reason=reason, evidence=_counted(0, population, 0.0))
    verb = "differs" if len(rows) == 1 else "differ"
    return _outlying(
        verdict="named" if part > LINE else "described",
        reason=f"{len(rows)} of {population} sequences {verb} as a whole, with {100 * part:.0f}% of k3: "
        f"{_worst(state, rows)}",
        evidence=_counted(len(rows), population, part),
        advice="Score these again, alone and with prefix caching and chunked prefill off. If they still differ, it "
        "is their content; if not, a state was wrong: prefix cache across a weight update, chunked prefill, or a "
        "recurrent state.",
        alternatives=("a state that went wrong", "other weights during these sequences", "their content"),
        tells_apart="the weight version of each token; the same sequences scored again",
    )


def _open(state: State, outliers: int, greater: Tensor, population: int) -> Finding:
    """The finding if outliers carry at most half of k3, but sequences with at least twice the others' |delta| carry
    more.
    """
    part = _part(state, greater)
    reason = (
        f"Whether outlier sequences differ as a whole is open: {len(greater)} of {population} have at least twice the "
        f"|delta| of the others, with {100 * part:.0f}% of k3, and the others scatter too: {_worst(state, greater)}"
    )
    return _outlying(verdict="undecided", reason=reason, evidence=_counted(outliers, population, part))


def _part(state: State, rows: Tensor) -> float:
    """The fraction of k3 that these sequences carry."""
    k3 = state.sums("k3")
    return float(k3[rows].sum() / k3.sum()) if float(k3.sum()) else 0.0


def _worst(state: State, rows: Tensor) -> str:
    """Names and places of these sequences with the largest k3, as the end of a sentence."""
    k3 = state.sums("k3")[rows]
    worst = rows[k3.argsort(descending=True, stable=True)][:_MOST_NAMED].tolist()
    of_sequences = state.names_of_sequences
    names = ", ".join("{} ({})".format(*of_sequences[row]) for row in worst)
    return f"{names}{', ...' if len(rows) > _MOST_NAMED else '.'}"


def _counted(outliers: int, population: int, part: float) -> tuple[Evidence, ...]:
    return (
        Evidence(name="outliers", value=outliers, unit="sequences"),
        Evidence(name="of", value=population, unit="sequences"),
        Evidence(name="part of k3", value=part),
    )


def _greater(residual: Tensor, counts: Tensor) -> Tensor:
    """Rows with at least twice the |delta| of the median sequence, int64."""
    means = residual / counts
    return (means - means[counts > 0].median() > math.log(2)).nonzero().squeeze(-1)


def _outliers(residual: Tensor, counts: Tensor) -> Tensor:
    """Rows that are outliers by the rule of `concentration`, int64."""
    present = counts > 0
    scaled, means = residual[present] / counts[present].sqrt(), residual[present] / counts[present]
    centre = scaled.median()
    spread = _MAD * float((scaled - centre).abs().median())
    limit = NormalDist().inv_cdf(1 - _ALARM / len(means))
    above_all = (scaled - centre > limit * spread) & (means - means.median() > math.log(2)) & (spread > 0)
    return present.nonzero().squeeze(-1)[above_all]


def flips(state: State) -> Finding:
    """If both sides' routes are known: which fraction of k3 lies at positions whose experts differ.

    Statistic: k3 of tokens with another expert set in some layer, over that of all tokens with known routes.
    """
    tokens = state.total("routes known")
    if not tokens:
        reason = "The log has no routes of both sides."
        return judged("inference path", "routing flips", "not tested", {"not tested": reason})
    flipped_share = share("k3 of flipped tokens", state.sums("flipped k3"), state.sums("known k3"))
    flipped = rate("flipped in some layer", state.sums("flipped"), state.sums("routes known"))
    verdict = explains(flipped_share)
    reasons: dict[FindingVerdict, str] = {
        "named": "Tokens routed to other experts carry most of k3.",
        "ruled out": "Tokens routed to the same experts carry most of k3.",
        "undecided": "Whether tokens routed otherwise carry most of k3 is open.",
        "not tested": "k3 is 0.",
    }
    advice = "Replay the sampler's routes in the trainer, or find what moves the scores: moeparity flips."
    return judged("inference path", "routing flips", verdict, reasons, (flipped_share, flipped), advice=advice)
