"""Tier 1: whether both columns are natural logarithms of probabilities."""

from __future__ import annotations

from moeparity.logs.diagnosis.columns import BASES
from moeparity.logs.diagnosis.finding import Evidence, Finding
from moeparity.logs.diagnosis.intervals import bounds, explains, share
from moeparity.logs.diagnosis.state import State

_ALL = 0.8
"""Of the distance, another base explains all but the noise."""


def not_logs(state: State) -> Finding:
    """Whether a column holds probabilities, or logarithms without their sign.

    Statistic: the count of values above 0 by more than fp32 rounding; a log-probability never is, so under rounding
    noise it is 0, and one such value is proof. Which of the two faults it is: a value above 1 is no probability; else
    the reading that brings the column nearer to the other side, by the share of the distance that it removes.
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


def log_base(state: State) -> Finding:
    """Whether one side's logarithms have base 2 or 10.

    Statistic: 1 - sum |r - c t| / sum |r - t|, distances cut at 5 nats, for the constants c = 1/ln 2, 1/ln 10, ln 2, ln
    10. Another base makes r = c t for every token, so that it is 1 but for noise. Rounding noise has r = t on average:
    scaling adds |c - 1| |t| and the statistic is negative. Temperature scales too, but then normalises: a token that
    its context prefers moves towards 0, from which 1/ln 2 and 1/ln 10 lead away or far beyond. A hard truncation moves
    it towards 0 too, which a factor explains to two thirds at most: below 0.8 no base is named.
    """
    whole = state.sums("distance")
    shares = [share(name, whole - state.sums(f"distance {name}"), whole) for name in BASES]
    best = max(shares, key=lambda evidence: evidence.value)
    verdict = explains(best)
    if verdict in {"named", "undecided"}:
        verdict = "ruled out" if bounds(best)[1] < _ALL else verdict if best.value > _ALL else "undecided"
    side, base = best.name.split(" in ")
    explained = Evidence(
        name=f"distance explained by {best.name}", value=best.value, low=best.low, high=best.high, level=best.level
    )
    if verdict != "named":
        reason = {
            "ruled out": "Neither side's logarithms have base 2 or 10.",
            "undecided": f"{best.name} explains the distance or not: the interval is too wide.",
            "not tested": "The sides are equal.",
        }[verdict]
        return Finding(tier="semantics", name="log base", verdict=verdict, reason=reason, evidence=(explained,))
    factor = "ln 2 = 0.6931" if base == "log2" else "ln 10 = 2.3026"
    return Finding(
        tier="semantics",
        name="log base",
        verdict="named",
        reason=f"The {side}'s logarithms have base {base[3:]}: the sides differ by that factor.",
        evidence=(explained,),
        advice=f"Multiply the {side}'s values by {factor}, or write natural logarithms.",
    )
