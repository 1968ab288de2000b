"""Tier 1: tests whether both columns are natural logarithms of probabilities."""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor

from moeparity.logs.diagnosis.columns import BASES
from moeparity.logs.diagnosis.finding import Evidence, Finding, judged
from moeparity.logs.diagnosis.intervals import bounds, explains, share
from moeparity.logs.diagnosis.state import State

_ALL = 0.8
"""The fraction of the distance that another base has to explain; it explains all but the noise."""
_ALL_SQUARES = 0.9
"""The fraction of the squared distance that a constant factor has to explain; other faults reach 0.85 (min_p = 0.3)."""
_OFF, _BETTER = 0.005, 0.1
"""A factor is not a base's if it differs from it by more than `_OFF`, and removes more than `_BETTER` of the squares
that the base leaves. If the base is right, routing noise moves the factor by at most 0.3 %; other weights move it by 2
%, but then it removes at most 0.05."""
_LEAST = 1e-3


def not_logs(state: State) -> Finding:
    """Tests whether a column has probabilities, or logarithms without their sign.

    Statistic: the number of values above 0 by more than fp32 rounding. A log-probability never is, so one such value is
    proof. Which of the two faults it is: a value above 1 is no probability; else the reading that brings the column
    nearer to the other side, by the fraction of the distance that it removes.
    """
    sides = [side for side in ("rollout", "trainer") if state.total(f"positive_{side}")]
    counts = tuple(
        Evidence(name=f"{side} values above 0", value=state.total(f"positive_{side}"), unit="tokens") for side in sides
    )
    if not sides:
        return Finding(tier="semantics", name="not logs", verdict="ruled out", reason="No value lies above 0.")
    name = " and ".join(sides)
    kinds = {"probabilities", "negated logs"}
    readings: tuple[Evidence, ...] = ()
    if any(state.greatest[side] > 1 for side in sides):
        kinds = {"negated logs"}
    elif len(sides) == 1:
        whole = state.sums("distance")
        reading = share(f"distance removed by reading {name} as P", whole - state.sums(f"distance {name} P"), whole)
        negated = share(f"distance removed by negating {name}", whole - state.sums("distance negated"), whole)
        readings = (reading, negated)
        kinds = {"probabilities"} if reading.value > negated.value else {"negated logs"}
    advice = {
        "probabilities": f"Give the logarithm of {name}.",
        "negated logs": f"Change the sign of {name}: log P is never positive.",
    }
    return Finding(
        tier="semantics",
        name="not logs",
        verdict="named",
        reason=f"{name}: {' or '.join(sorted(kinds))}, not log-probabilities, since some values lie above 0.",
        evidence=(*counts, *readings),
        advice=" Or: ".join(advice[kind] for kind in sorted(kinds)),
        alternatives=tuple(sorted(kinds)) if len(kinds) > 1 else (),
        tells_apart="one token whose probability is known" if len(kinds) > 1 else "",
    )


def factor_of(state: State) -> float:
    """The c of r = c t by least squares through 0; NaN if all t are 0."""
    yy = state.total("yy")
    return state.total("xy") / yy if yy else math.nan


def _residual_squares(state: State, c: float) -> Tensor:
    """sum (r - c t)^2 of each sequence, fp64 [B]."""
    return (state.sums("xx") - 2 * c * state.sums("xy") + c * c * state.sums("yy")).clamp(min=0.0)


def _followed(state: State, c: float) -> float:
    """1 - sum (r - c t)^2 / sum (r - mean r)^2: the fraction of r's spread that c t follows; -inf if r has none."""
    pairs = state.total("pairs")
    spread = state.total("xx") - state.total("x") ** 2 / pairs if pairs else 0.0
    return 1 - float(_residual_squares(state, c).sum()) / spread if spread > 0 else -math.inf


def _is_base(state: State, base: float) -> bool:
    """Whether the factor between the sides is this base's, as far as noise lets one tell."""
    factor, unexplained = factor_of(state), float(_residual_squares(state, base).sum())
    better = 1 - float(_residual_squares(state, factor).sum()) / unexplained if unexplained else 0.0
    return abs(factor / base - 1) <= _OFF or better <= _BETTER


def scaled(state: State) -> Finding:
    """Tests whether one side is the other times a constant that is not a logarithm's base.

    Statistic: 1 - sum (r - c t)^2 / sum (r - t)^2 with the least-squares c; 1 if all tokens have one factor. Rounding
    noise leaves c at 1, so nothing is removed. A temperature scales the logits and normalises, so no single factor fits
    both the mode of a context and its tail. A factor that may be a base's is left open. Where one side is far below the
    other, any small enough c removes most of the distance; so what c leaves has to be small beside the spread of r too.
    """
    whole, factor = _residual_squares(state, 1.0), factor_of(state)
    removed = share("squared distance explained by one factor", whole - _residual_squares(state, factor), whole)
    verdict = explains(removed)
    # If one side is 0 throughout, the best factor is 0 too, which is no scale.
    if removed.value < _ALL_SQUARES or abs(factor) < _LEAST or _followed(state, factor) < _ALL_SQUARES:
        verdict = "ruled out" if verdict != "not tested" else verdict
    elif any(_is_base(state, base) for base in BASES.values()):
        verdict = "undecided"
    return judged(
        "semantics",
        "scaled",
        verdict,
        {
            "ruled out": "No one factor brings the sides together.",
            "undecided": f"A factor of {factor:.4g} may explain the distance, or another base, or neither.",
            "not tested": "The sides are equal.",
            "named": f"The rollout's log-probabilities are the trainer's times {factor:.4g}, at all tokens alike: that "
            "is no logarithm's base, and no temperature, which would normalise again.",
        },
        (removed, Evidence(name="rollout / trainer", value=factor)),
        advice="Look for a factor on the log-probabilities themselves: a temperature that divides them in place of the "
        "logits, a coefficient, a mean taken for a sum.",
    )


def log_base(state: State) -> Finding:
    """Tests whether one side's logarithms have base 2 or 10.

    Statistic: 1 - sum |r - c t| / sum |r - t|, with distances cut at 5 nats, for c = 1/ln 2, 1/ln 10, ln 2, ln 10.
    Another base makes r = c t for every token, so the statistic is 1 up to noise. Rounding noise has r = t on average:
    scaling then adds |c - 1| |t|, and the statistic is negative. A temperature scales too, but then normalises: a token
    that its context prefers moves towards 0, while 1/ln 2 and 1/ln 10 move it away or far beyond. A hard truncation
    also moves it towards 0, of which a factor explains at most two thirds; so below 0.8 no base is named. Nor is one if
    an estimated factor fits better (1.4 is near 1/ln 2 = 1.443): that is `scaled`.
    """
    whole = state.sums("distance")
    shares = [share(name, whole - state.sums(f"distance {name}"), whole) for name in BASES]
    best = max(shares, key=lambda evidence: evidence.value)
    verdict = explains(best)
    if verdict in {"named", "undecided"}:
        verdict = "ruled out" if bounds(best)[1] < _ALL else verdict if best.value > _ALL else "undecided"
    if verdict in {"named", "undecided"} and not _is_base(state, BASES[best.name]):
        verdict = "ruled out"
    side, base = best.name.split(" in ")
    factor = "ln 2 = 0.6931" if base == "log2" else "ln 10 = 2.3026"
    return judged(
        "semantics",
        "log base",
        verdict,
        {
            "ruled out": "Neither side's logarithms have base 2 or 10.",
            "undecided": f"Whether {best.name} explains the distance is open: the interval is too wide.",
            "not tested": "The sides are equal.",
            "named": f"The {side}'s logarithms have base {base[3:]}: the sides differ by that factor.",
        },
        (replace(best, name=f"distance explained by {best.name}"),),
        advice=f"Multiply the {side}'s values by {factor}, or write natural logarithms.",
    )
