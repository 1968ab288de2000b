"""Tier 1: tests whether each log-probability stands beside its own token."""

from __future__ import annotations

import math
from functools import partial

from moeparity.logs.diagnosis.columns import SHIFTS
from moeparity.logs.diagnosis.finding import LINE, Evidence, Finding, FindingVerdict, judged
from moeparity.logs.diagnosis.intervals import above, explains, mean, negated, share
from moeparity.logs.diagnosis.state import State

# If exact 0s are rarer than this, a numerical event at a confident token explains a single one just as well.
_RARE = 1e-3


_placeholders = partial(Finding, tier="semantics", name="placeholders")


def placeholders(state: State) -> Finding:
    """Tests whether zeros stand where there was no log-probability (placeholders).

    Statistic: the fraction of scored tokens to which one side gives log P = 0 exactly and the other P < 1/2. Rounding
    makes an exact 0 of a P within 6e-8 of 1, and no known noise turns that into 1/2. A truncation that keeps one token
    gives log P = 0 too, with min_p or a small top_k even if P was below 1/2; `_kept_alone` tells these from
    placeholders.
    """
    counts = {side: state.total(f"zero_{side}") for side in ("rollout", "trainer")}
    evidence = tuple(
        Evidence(name=f"{side} exactly 0 where the other side has P < 1/2", value=count, unit="tokens")
        for side, count in counts.items()
    )
    worst = max(counts, key=lambda side: counts[side])
    if not counts[worst]:
        reason = "No exact 0 stands beside a P below 1/2."
        return _placeholders(verdict="ruled out", reason=reason, evidence=evidence)
    part = counts[worst] / state.tokens
    advice = (
        f"Mask these tokens: a {worst} log-probability of 0 is P = 1. Trust the producer's loss mask, not the value."
    )
    if state.total(f"all_zero_{worst}") == state.tokens:
        return _placeholders(
            verdict="named",
            reason=f"Every {worst} log-probability is exactly 0.",
            evidence=evidence,
            advice=f"{advice} If the sampler was greedy or had top_k = 1, record raw log-probabilities.",
            alternatives=("zeros in place of log-probabilities", "greedy sampling with processed log-probabilities"),
            tells_apart="the sampling parameters",
        )
    truncated, numbers = _kept_alone(state, worst, part)
    if truncated == "named":
        reason = "The zeros are of tokens that a truncation kept alone."
        evidence = (*evidence, *numbers)
        return _placeholders(verdict="ruled out", reason=reason, evidence=evidence)
    share_of_all = mean(f"fraction of all tokens ({worst})", state.sums(f"zero_{worst}"), state.counts)
    doubts = ("rounding events on confident tokens",) * (part < _RARE)
    doubts += ("a truncation that keeps one token",) * (truncated == "undecided")
    return _placeholders(
        verdict="undecided" if doubts else "named",
        reason=f"The {worst} has log P = 0 exactly at {counts[worst]:.0f} tokens to which the other side gives P < "
        "1/2.",
        evidence=(*evidence, share_of_all),
        advice=advice,
        alternatives=("placeholders", *doubts) if doubts else (),
        tells_apart="the ids at these places: tool output, feedback and padding are placeholders" if doubts else "",
    )


def _kept_alone(state: State, side: str, part: float) -> tuple[FindingVerdict, tuple[Evidence, ...]]:
    """Tests whether the zeros of `side`, the fraction `part` of its tokens, come from a truncation that kept one token.

    Such a truncation shows in one of two ways. The side is 0 wherever the other side is sure of the token; placeholders
    are no more frequent there than elsewhere. Or all other tokens are shifted in one direction, by the log of the kept
    mass; beside placeholders they are not.
    """
    other_side = "trainer" if side == "rollout" else "rollout"
    sure = mean(
        f"exactly 0 where the {other_side} is sure", state.sums(f"sure_zero_{side}"), state.sums(f"sure_{other_side}")
    )
    offsets = share("offset of the other tokens", state.sums("rest"), state.sums("rest_gross"))
    tested = float(state.sums(f"sure_{other_side}").sum()) > 0
    always = above(sure, max(LINE, 2 * part)) if tested else "not tested"
    offset = explains(negated(offsets) if side == "rollout" else offsets)
    verdicts = {always, offset}
    verdict: FindingVerdict = (
        "named" if "named" in verdicts else "undecided" if "undecided" in verdicts else "ruled out"
    )
    return verdict, (sure, offsets)


def impossible(state: State) -> Finding:
    """Tests for sampled tokens with log P = -inf on a side, which rounding of finite logits can't give."""
    count = state.total("impossible")
    return judged(
        "semantics",
        "impossible tokens",
        "named" if count else "ruled out",
        {
            "ruled out": "Every sampled token is possible on both sides.",
            "named": "A side says that a token which was sampled could not have been.",
        },
        (Evidence(name="tokens with log P = -inf on a side", value=count, unit="tokens"),),
        advice="Look for a truncation or a grammar mask that one side applies to tokens sampled without it, and for "
        "ids shifted against log-probabilities. These tokens are left out of all that follows.",
    )


def misaligned(state: State) -> Finding:
    """Tests whether the rollout's log-probabilities belong to tokens some places later.

    Statistic, for shifts k of up to 4 places: 1 - sum |r[i] - t[i + k]| / sum |r[i] - t[i]|, with distances cut at 5
    nats, over the same pairs of scored tokens of a sequence. Under noise r[i] is nearest to t[i], so the statistic is
    negative and large. If the column is shifted by k, it is 1 (up to noise) at k, and about 0 at all other shifts.
    """
    shares: dict[int, Evidence] = {}
    for by in SHIFTS:
        distance, shifted_distance = state.shift(by)
        shares[by] = share(f"distance explained by a shift of {by:+d}", distance - shifted_distance, distance)
    finite = {by: evidence for by, evidence in shares.items() if math.isfinite(evidence.value)}
    if not finite:
        reason = "The sides are equal, or no sequence has two scored tokens in a row."
        return Finding(tier="semantics", name="misaligned", verdict="not tested", reason=reason)
    by = max(finite, key=lambda shift: finite[shift].value)
    best = finite[by]
    return judged(
        "semantics",
        "misaligned",
        explains(best),
        {
            "ruled out": "Neighbouring tokens fit worse than the token itself.",
            "undecided": f"Whether a shift of {by:+d} explains the distance is open: the interval is too wide.",
            "named": f"The rollout's value at index t is the trainer's at index t{by:+d}.",
        },
        (best,),
        advice="Align one side: logits at position i score token i + 1, and some producers index log-probabilities by "
        "the position, others by the token; response-aligned lists start at the first response token.",
    )


def unrelated(state: State) -> Finding:
    """Tests whether the two columns have anything to do with each other.

    Statistic: Pearson's correlation of r and t (cut at -20 nats) over all tokens, with an interval from its linear term
    per sequence. Rounding noise leaves it above 0.99; log-probabilities of other ids, of another tokenizer or of other
    rows of a batch give about 0. Named below 1/2.
    """
    correlation = _correlation(state)
    together = above(correlation, LINE)
    opposite: dict[FindingVerdict, FindingVerdict] = {"ruled out": "named", "named": "ruled out"}
    return judged(
        "semantics",
        "unrelated",
        opposite.get(together, together),
        {
            "ruled out": "Log-probabilities of the two sides go together.",
            "undecided": "Whether the two sides go together cannot be said from so few sequences.",
            "not tested": "One side's log-probabilities do not vary.",
            "named": "The log-probabilities of the two sides hardly depend on each other, at no shift.",
        },
        (correlation,),
        advice="Compare the token ids that each side scored: the same tokenizer and template, the same row of the "
        "batch, left against right padding, a prompt cut off on one side. Then the weights: a refit that failed, "
        "or another checkpoint.",
        alternatives=(
            "other token ids or another tokenizer",
            "rows joined wrongly",
            "a shift of more than 4 places",
            "unrelated weights",
        ),
        tells_apart="the token ids of both sides",
    )


def _correlation(state: State) -> Evidence:
    n, x, y, xx, yy, xy = (state.sums(name) for name in ("pairs", "x", "y", "xx", "yy", "xy"))
    total = float(n.sum())
    if not total:
        return Evidence(name="correlation", value=math.nan, low=-math.inf, high=math.inf)
    mean_x, mean_y = float(x.sum()) / total, float(y.sum()) / total
    spread_x = math.sqrt(max(0.0, float(xx.sum()) / total - mean_x**2))
    spread_y = math.sqrt(max(0.0, float(yy.sum()) / total - mean_y**2))
    if spread_x * spread_y < 1e-12:
        return Evidence(name="correlation", value=math.nan, low=-math.inf, high=math.inf)
    product = (xy - mean_x * y - mean_y * x + n * (mean_x * mean_y)) / (spread_x * spread_y)
    squares = (xx - 2 * mean_x * x + n * mean_x**2) / spread_x**2 + (yy - 2 * mean_y * y + n * mean_y**2) / spread_y**2
    value = float(product.sum()) / total
    # The influence of a sequence on the correlation: its products, minus what its own spread contributes.
    influence = product - value * squares / 2
    interval = mean("correlation", influence, n, offset=value)
    return Evidence(name="correlation", value=value, low=interval.low, high=interval.high, level=interval.level)
