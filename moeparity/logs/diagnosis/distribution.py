"""Tier 1: tests whether both columns are of the distribution from which the tokens were drawn.

Let q be the distribution that was sampled from and p the other one, both in the same context. Three identities hold for
every context, and so for any mixture of contexts, without assumptions about the model:
- E_q[p/q] is the mass that p has on what q can draw: 1 with full support, less under truncation.
- With h = (p - q) / (p + q) = tanh(delta / 2), which is bounded, and m = (p + q) / 2: E_q[h] = -E_m[h^2] and
  E_p[h] = +E_m[h^2], while E[h^2] is E_m[h^2] under either, up to E_m[h^3]. So E[h] / E[h^2] is -1 if the tokens were
  drawn from q, and +1 if from p.
- If p is q to the power kappa, normalised, then E_q[(log p - kappa log q) (p/q - 1)] = 0, since log p - kappa log q is
  the same for every token of a context and the mean of p/q - 1 is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

from moeparity.logs.diagnosis.finding import LINE, Evidence, Finding, FindingVerdict, judged
from moeparity.logs.diagnosis.intervals import LEVEL, above, bounds, explains, mean, negated, share, slope
from moeparity.logs.diagnosis.state import State

_ALL = 0.95
"""The fraction of the modes' offset that a temperature has to explain. Temperatures from 0.9 to 1.2 explain at least
0.98, even under fp8 noise. A repetition penalty, which leaves unseen modes alone, reaches 0.9.
"""
_LEAST = 1e-9
_UNEVEN = 1.5
"""If the mean noise of sequences is this many times their median noise, a few sequences differ too much for a
first-order term: with logits of other weights (standard deviation 1.6) in a fifth of the sequences, the bounds missed
the truth.
"""
_SHARPENED = (
    "Near 1, a trainer whose weights have sharpened since the rollout looks alike: equal weights tell them apart."
)


_SINGLE = ("top-p or min-p", "a grammar that allows one token")
"""Causes that leave a single token, so that its P is exactly 1."""
_SEVERAL = (
    "top-k",
    "tokens that one side bans: a grammar, bad words, an end of sequence before min_tokens",
    "padding of the vocabulary that the other side counts",
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Statistics from -1 to 1 on how the difference of the sides is distributed over tokens; `shape` defines them."""

    mode: Evidence
    tail: Evidence
    bulk: Evidence
    missing: Evidence
    missing_rollout: Evidence

    def truncated(self) -> tuple[FindingVerdict, FindingVerdict]:
        """Whether the rollout is normalised over fewer tokens than the trainer, and the reverse."""
        forward = _all(explains(negated(self.bulk)), explains(self.missing))
        reverse = _all(explains(self.bulk), explains(self.missing_rollout))
        return forward, reverse

    def tempered(self) -> FindingVerdict:
        """Whether one side prefers the mode of each context more than the other side does."""
        return explains(self.mode if self.mode.value > 0 else negated(self.mode))


def shape(state: State) -> Shape:
    """Statistics of the form sum of offsets / sum of |offsets|: 0 if they cancel, +-1 if all have one sign.

    mode: offsets of the logit log P/(1-P), trainer minus rollout, at tokens with P > 1/2 (geometric mean of the sides).
    tail: delta at tokens with P < 0.05. bulk: delta at all tokens. These three are cut at 0.1 nats, so that they tell
    about many tokens rather than a few large ones.
    missing: of 1 - rho. missing_rollout: of 1 - 1/rho.
    Under rounding noise rho has mean 1, so `missing` is 0; the others are of the size of delta itself, since noise
    moves a logit up as often as down. Truncation before the rollout's normalisation makes every delta negative: bulk =
    -1, missing = 1, tail = -1 (log S with the kept mass S, the same for all tokens of a context). A temperature moves
    modes and tails in opposite directions: mode = -1 and tail > -1/2 for a sharper rollout, with missing = 0.
    """
    return Shape(
        mode=share("offset of modes", state.sums("mode"), state.sums("mode_gross")),
        tail=share("offset of the tail", state.sums("tail"), state.sums("tail_gross")),
        bulk=share("offset of all tokens", state.sums("bulk"), state.sums("bulk_gross")),
        missing=share("net part of |rho - 1|", -state.sums("ratio"), state.sums("ratio_gross")),
        missing_rollout=share("net part of |1/rho - 1|", -state.sums("inverse"), state.sums("inverse_gross")),
    )


def _all(*verdicts: FindingVerdict) -> FindingVerdict:
    """`named` if all verdicts are, `ruled out` if one is, else undecided."""
    if "ruled out" in verdicts:
        return "ruled out"
    if "not tested" in verdicts:
        return "not tested"
    return "undecided" if "undecided" in verdicts else "named"


def ratio(state: State) -> Evidence:
    """E[rho] over the tokens, with delta cut at 20 nats; 1 under any noise, the trainer's kept mass under
    truncation.
    """
    return mean("E[rho]", state.sums("ratio"), state.sums("usable"), offset=1.0)


def inverse(state: State) -> Evidence:
    """E[1/rho]; 1 if the tokens were drawn from the trainer's column."""
    return mean("E[1/rho]", state.sums("inverse"), state.sums("usable"), offset=1.0)


def truncation(state: State, form: Shape, *, reverse: bool) -> Finding:
    """Tests for truncation (top-p, top-k, min-p, a banned token, a padded head): one side is normalised over fewer
    tokens.

    Statistics: `Shape.bulk` and `Shape.missing`, both beyond 1/2. `reverse` exchanges the sides: the trainer is
    normalised over the kept set, the rollout's log-probabilities are raw.
    """
    verdict = form.truncated()[reverse]
    gross, mass = (form.missing_rollout, inverse(state)) if reverse else (form.missing, ratio(state))
    evidence = (mass, gross, form.bulk, form.tail)
    name = "raw log-probs (truncation)" if reverse else "truncation"
    side, other_side = ("trainer", "rollout") if reverse else ("rollout", "trainer")
    single = state.total(f"certain_{side}")
    return judged(
        "semantics",
        name,
        verdict,
        {
            "ruled out": "Most of the difference is no offset in one direction.",
            "undecided": "Whether most of the difference lies in one direction is open.",
            "not tested": "The sides are equal.",
            "named": f"The {side}'s log-probabilities are normalised over fewer tokens than the {other_side}'s.",
        },
        (*evidence, *(_kept_masses(state, side, single) if verdict == "named" else ())),
        advice=(
            "Record processed log-probabilities (vLLM: --logprobs-mode processed_logprobs), or score the trainer's "
            "without the kept set."
            if reverse
            else "Look for banned tokens and a padded head. Where there are none, sample with top_p = 1, top_k off and "
            "min_p = 0, or give the trainer the kept set and renormalise there too; raw log-probabilities remove "
            "delta, not the bias: tokens outside the set are never drawn."
        ),
        alternatives=_SINGLE if single else _SEVERAL,
        tells_apart="the sampling parameters, and the width of the trainer's head",
    )


def _kept_masses(state: State, side: str, single: float) -> tuple[Evidence, ...]:
    """The mass that a truncation of `side` keeps, and how many tokens it kept alone (`single`)."""
    masses = (state.above if side == "trainer" else state.below).quantile
    return (
        Evidence(name="kept mass of the token at rank 5%", value=math.exp(-masses(0.95))),
        Evidence(name="median kept mass", value=math.exp(-masses(0.5))),
        Evidence(name=f"{side} exactly 0, one token kept", value=single, unit="tokens"),
    )


def temperature(state: State, form: Shape) -> Finding | None:
    """Tests for a temperature that only one side applies: one column is the other to a power, normalised. None if not.

    Statistic: `Shape.mode` beyond 1/2, and no truncation. Which side was sampled from is told by E[h] / E[h^2], whose
    interval must lie wholly above -1/2 or wholly below 1/2. `_power` estimates the power.

    A cap on the logits moves modes and tails as a temperature does, so it is listed as an alternative. A penalty on
    tokens that were seen moves most modes one way and the others the opposite way, which no temperature does; that is
    left open.
    """
    if form.tempered() != "named":
        return None
    if abs(form.mode.value) < _ALL:
        return _some_modes(form)
    origin = mean("drawn from (-1 rollout, +1 trainer)", state.sums("side"), state.sums("side_square"))
    names = ("temperature", "raw log-probs (temperature)")
    from_rollout, from_trainer = above(origin, LINE) == "ruled out", above(origin, -LINE) == "named"
    if from_rollout == from_trainer:
        return Finding(
            tier="semantics",
            name=names[0],
            verdict="undecided",
            reason="One side prefers its modes throughout; which one was sampled from is open."
            if not from_rollout
            else "One side prefers its modes throughout; the tokens were drawn from neither, but between the two.",
            evidence=(form.mode, form.tail, origin),
            alternatives=names,
            tells_apart="more sequences, or the sampler's log-probabilities mode",
        )
    mirrored = from_trainer
    power = _power(state, mirrored=mirrored)
    reason, advice = _temperature_words(power.value, mirrored=mirrored)
    return Finding(
        tier="semantics",
        name=names[mirrored],
        verdict="named",
        reason=reason,
        evidence=(power, form.mode, form.tail, origin, ratio(state), inverse(state)),
        advice=f"{advice} Only the quotient of two temperatures shows. {_SHARPENED}",
        alternatives=("a temperature", "a cap on the logits, or another scale of the head"),
        tells_apart="the sampling parameters; both sides' config.json and head",
    )


def _power(state: State, *, mirrored: bool) -> Evidence:
    """The exponent kappa: the ratio of sums in the third identity of this module, with an interval.

    Noise in the logits, other weights in some sequences included, moves the ratio away from 1: of a token's noise eta,
    E_q[eta (p/q - 1)] is left, about var(eta) E_q[1 - q]. The interval reaches from the ratio without that term to the
    ratio less that term (Fieller's bounds of each), and not beyond 1. For each sequence var(eta) is taken to be what a
    line through 0 leaves of the modes' logits. A power leaves something there too, so the term is rather too large.
    There are no bounds if a few sequences are much noisier than the others.
    """
    column, rollout, trainer = ("kappa", "rollout", "trainer")
    if mirrored:
        column, rollout, trainer = ("kappa_inverse", "trainer", "rollout")
    y, x = state.sums(f"{column}_y"), state.sums(f"{column}_x")
    ratio = slope("T", y, x)
    line = state.total("logit_both") / max(state.total(f"logit_{rollout}"), _LEAST)
    squares = (
        state.sums(f"logit_{trainer}") - 2 * line * state.sums("logit_both") + line**2 * state.sums(f"logit_{rollout}")
    )
    noise = squares / state.sums("modes").clamp(min=1)
    corrected = slope("T", y - noise * state.sums(f"others_{rollout}"), x)
    low = max(min(bounds(ratio)[0], bounds(corrected)[0]), 0.0)
    high = max(bounds(ratio)[1], bounds(corrected)[1])
    if math.isinf(high) or float(noise.mean()) > _UNEVEN * float(noise.median()):
        return replace(ratio, low=-math.inf, high=math.inf)
    return (
        replace(ratio, low=low, high=min(high, 1.0))
        if ratio.value < 1
        else replace(ratio, low=max(low, 1.0), high=high)
    )


def _some_modes(form: Shape) -> Finding:
    return Finding(
        tier="semantics",
        name="temperature",
        verdict="undecided",
        reason="One side prefers most of its modes, and the other some: a temperature alone moves all of them.",
        evidence=(form.mode, form.tail),
        alternatives=(
            "a penalty or a bias on some tokens",
            "weights that are sharper or flatter",
            "a temperature beside another difference",
        ),
        tells_apart="the sampling parameters; equal weights",
    )


def _temperature_words(value: float, *, mirrored: bool) -> tuple[str, str]:
    if mirrored:
        return (
            (
                "The tokens were drawn from the trainer's column, and the rollout's is the trainer's to the power "
                f"{value:.3g}: raw log-probabilities of a sampler at temperature {value:.3g} (nearer to 1 if the sides "
                "also differ otherwise), which the trainer applies too."
            ),
            (
                "Record processed log-probabilities (vLLM: --logprobs-mode processed_logprobs). A trainer that divides "
                "its logits by another temperature than the sampler looks the same, and so do exchanged columns."
            ),
        )
    return (
        (
            f"The trainer's column is the rollout's to the power {value:.3g}: processed log-probabilities of a "
            f"sampler at temperature {value:.3g} (nearer to 1 if the sides also differ otherwise), beside a trainer at "
            "temperature 1."
        ),
        (
            "Read the temperature that is configured, divide the trainer's logits by it (or sample at temperature 1), "
            "and run again."
        ),
    )


def calibration(state: State) -> Finding:
    """Tests whether the tokens were drawn from the trainer's distribution, if the log has its entropy H.

    Statistic: E[t + H], which is 0 if they were. A mismatch of the size that the two columns show moves it by at most
    sqrt(E[(rho - 1)^2] Var t) (Cauchy-Schwarz). Beyond that, the tokens come from a distribution that neither column
    shows: both columns are raw log-probabilities, and the sampler used a temperature or a truncation.
    """
    counts = state.sums("surprises")
    if not float(counts.sum()):
        reason = "The log has no entropy: whether the tokens were drawn from these distributions at all stays open."
        return Finding(
            tier="semantics", name="sampling", verdict="not tested", reason=reason,
            tells_apart="the trainer's entropy at each token",
        )  # fmt: skip
    surprise = mean("E[log P_trainer + entropy]", state.sums("surprise"), counts, "nats")
    total = state.total("pairs")
    square = 2 * state.total("k3") / total
    spread = max(0.0, state.total("yy") / total - (state.total("y") / total) ** 2)
    bound = math.sqrt(square * spread)
    evidence = (surprise, Evidence(name="at most, by the size of the mismatch", value=bound, unit="nats"))
    sharper, flatter = above(surprise, bound), above(negated(surprise), bound)
    degree = "less" if sharper == "named" else "more"
    return judged(
        "semantics",
        "sampling",
        "named" if "named" in {sharper, flatter} else "ruled out",
        {
            "ruled out": "The tokens are as surprising as the trainer's entropy says, within the interval and that "
            "bound.",
            "named": f"The tokens are {degree} surprising than the trainer's own entropy says: they were drawn from "
            "a distribution that neither column shows.",
        },
        evidence,
        advice="Look at the sampler's temperature, top_p, top_k, min_p and penalties: its log-probabilities are raw. "
        "Then check that the entropy is of the same temperature as the log-probabilities.",
    )


_mean_ratio = partial(Finding, tier="semantics", name="E[rho]")


def offset(state: State, has_cause: bool) -> Finding:
    """Tests E[rho] = 1, which has to hold before numerics are discussed. has_cause: a named cause explains why it does
    not.

    Statistic: E[rho], which is 1 under rounding noise of any size and under stale weights. Its interval sees no more of
    a heavy tail than the tokens reached: if P moves from confident tokens to ones that are never drawn, the mean stays
    below 1 for a log of any length.
    """
    evidence = ratio(state)
    low, high = bounds(evidence)
    if not math.isfinite(low + high):
        return _mean_ratio(
            verdict="undecided",
            reason="E[rho] has no interval: there are too few sequences.",
            evidence=(evidence,),
            tells_apart="more sequences",
        )
    if low <= 1 <= high:
        return _mean_ratio(verdict="ruled out", reason="E[rho] = 1 within its interval.", evidence=(evidence,))
    if has_cause:
        return _mean_ratio(verdict="named", reason="E[rho] is not 1, for the cause named.", evidence=(evidence,))
    return _mean_ratio(
        verdict="undecided",
        reason=f"E[rho] is not 1 at the level of {100 * LEVEL:g}%, and no cause tested here explains most of the "
        "difference.",
        evidence=(evidence, share("net part of |rho - 1|", -state.sums("ratio"), state.sums("ratio_gross"))),
        advice="Compare the settings of both sides: temperature, top_p, top_k, min_p, penalties, logit bias, grammar "
        "masks, the template, the end-of-sequence token.",
        alternatives=(
            "a slight truncation",
            "penalties, logit bias or a grammar mask",
            "rare great events on confident tokens",
        ),
        tells_apart="sampling parameters; the tokens with the greatest |delta|",
    )
