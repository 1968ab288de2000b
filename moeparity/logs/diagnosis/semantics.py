"""Runs the tests of tier 1 in order; each is made only if those before it leave it a meaning."""

from __future__ import annotations

from collections.abc import Callable

from moeparity.logs.diagnosis.alignment import impossible, misaligned, placeholders, unrelated
from moeparity.logs.diagnosis.distribution import Shape, calibration, offset, shape, temperature, truncation
from moeparity.logs.diagnosis.finding import Finding, FindingVerdict
from moeparity.logs.diagnosis.intervals import explains, negated
from moeparity.logs.diagnosis.numeric_formats import log_base, not_logs, scaled
from moeparity.logs.diagnosis.state import State

Test = Callable[[State], Finding]
LATER = ("impossible tokens", "misaligned", "unrelated", "log base", "scaled", "placeholders")
DISTRIBUTION = (
    "truncation",
    "raw log-probs (truncation)",
    "temperature",
    "raw log-probs (temperature)",
    "sampling",
    "E[rho]",
)


def semantics(state: State) -> tuple[Finding, ...]:
    """All findings of tier 1."""
    findings = [not_logs(state)]
    if findings[0].verdict == "named":
        return (*findings, *_untested((*LATER, *DISTRIBUTION), "the columns are not logarithms"))
    steps: tuple[tuple[Test, str], ...] = (
        (impossible, ""),
        (misaligned, "the sides are not aligned"),
        (unrelated, "the sides are unrelated"),
        (log_base, "the logarithms have another base"),
        (scaled, "one side is the other times a constant"),
        (placeholders, "placeholders stand where P may be anything; mask them first"),
    )
    for number, (test, because) in enumerate(steps, 1):
        findings.append(test(state))
        if because and findings[-1].verdict == "named":
            return (*findings, *_untested((*LATER[number:], *DISTRIBUTION), because))
    return (*findings, *_distribution(state))


def _distribution(state: State) -> list[Finding]:
    form = shape(state)
    findings = _truncations(state, form) + _temperatures(state, form)
    has_cause = any(finding.verdict == "named" for finding in findings)
    if has_cause:
        findings += _untested(("sampling",), "a cause is named that says which column the tokens were drawn from")
    else:
        findings.append(calibration(state))
    return [*findings, offset(state, has_cause)]


def _truncations(state: State, form: Shape) -> list[Finding]:
    return [truncation(state, form, reverse=reverse) for reverse in (False, True)]


def _temperatures(state: State, form: Shape) -> list[Finding]:
    """The findings on both kinds of temperature. A truncation moves modes and tail the same way; beside one, a
    temperature shows only if the tail moves the other way.
    """
    names = ("temperature", "raw log-probs (temperature)")
    forward, reverse = form.truncated()
    if "named" in {forward, reverse}:
        return _beside_truncation(form, reverse == "named")
    finding = temperature(state, form)
    if finding is None:
        verdict: FindingVerdict = form.tempered()
        reason = {
            "ruled out": "Neither side prefers its modes throughout.",
            "undecided": "Whether one side prefers its modes throughout is open.",
            "not tested": "No difference at tokens with P > 1/2.",
        }[verdict]
        return [_finding(name, verdict, reason, form) for name in names]
    if "undecided" in {forward, reverse} and not _opposite(form):
        return [_either(form)]
    other_names = [name for name in names if name != finding.name]
    reason = "The tokens were drawn from the other column."
    return [finding, *(_finding(name, "ruled out", reason, form) for name in other_names if finding.verdict == "named")]


def _opposite(form: Shape) -> bool:
    """Whether modes and tail surely do not move together, as truncation alone would move them."""
    tail = form.tail if form.mode.value > 0 else negated(form.tail)
    return explains(tail) == "ruled out"


def _beside_truncation(form: Shape, reverse: bool) -> list[Finding]:
    names = ("temperature", "raw log-probs (temperature)")
    name, opposite = (names[1], names[0]) if reverse else names
    findings = [_finding(opposite, "ruled out", "The offset lies in the other direction.", form)]
    if form.tempered() == "named" and _opposite(form):
        reason = "Truncation alone would move tail and modes alike, and it does not: a temperature acts as well."
        beside = Finding(
            tier="semantics",
            name=name,
            verdict="named",
            reason=reason,
            evidence=(form.mode, form.tail),
            advice="Settle the truncation first, and record again: the temperature can't be estimated beside it.",
        )
    else:
        reason = "A temperature that moves modes and tail less than the truncation does can't be seen beside it."
        beside = _finding(name, "undecided", reason, form)
    return [*findings, beside]


def _either(form: Shape) -> Finding:
    return Finding(
        tier="semantics",
        name="temperature",
        verdict="undecided",
        reason="One side prefers its modes throughout; whether the tail goes with them is open.",
        evidence=(form.mode, form.tail, form.missing, form.bulk),
        alternatives=("temperature", "truncation"),
        tells_apart="more sequences, or the sampling parameters",
    )


def _finding(name: str, verdict: FindingVerdict, reason: str, form: Shape) -> Finding:
    return Finding(tier="semantics", name=name, verdict=verdict, reason=reason, evidence=(form.mode, form.tail))


def _untested(names: tuple[str, ...], because: str) -> list[Finding]:
    reason = f"Not tested: {because}."
    return [Finding(tier="semantics", name=name, verdict="not tested", reason=reason) for name in names]
