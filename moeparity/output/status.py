"""The line that opens and closes a report: verdict, figure, gate, exit code and reason."""

from __future__ import annotations

import math
from collections.abc import Sequence

from moeparity.metrics.declaration import FORWARD_KL, Metric
from moeparity.metrics.gating import gated_name
from moeparity.metrics.registry import METRICS
from moeparity.metrics.verdict import Interval, Verdict
from moeparity.output.blocks import State
from moeparity.output.words import between

_STATES: dict[int, State] = {0: "pass", 1: "fail", 3: "inconclusive"}
STYLE: dict[State, str] = {
    "pass": "bold green",
    "fail": "bold red",
    "inconclusive": "bold yellow",
    "error": "bold red",
    "done": "bold",
}
"""The style of each verdict."""


def state_of(exit_code: int, *, bounded: bool = True) -> State:
    """The word for an exit code; `bounded` says whether anything could have failed."""
    return _STATES.get(exit_code, "error") if bounded else "done"


def headline(state: State, but: Sequence[str] = ()) -> str:
    """`PASS`, or `PASS, but` if there is something to know beside it."""
    return f"{state.upper()}, but" if but else state.upper()


def with_but(text: str, but: Sequence[str]) -> str:
    """The text after the headline; what to know beside the verdict comes first."""
    return "; ".join((*but, text))


def style_of(state: State, but: Sequence[str] = ()) -> str:
    """The style of a headline."""
    return STYLE["inconclusive" if but else state]


def status(figure: str, gate: str, exit_code: int, reason: str = "") -> str:
    """`figure, gate; exit 1: reason`."""
    return f"{figure}, {gate}; exit {exit_code}" + (f": {reason}" if reason else "")


def judged(verdict: Verdict, name: str = "") -> str:
    """A verdict on a metric: `k3 (KL estimate, nats per token) 2.7e-04 [2.1e-04, 3.7e-04], above gate 0.0001 (the most
    allowed); exit 1`. If all bits are equal it says so; the reason is added unless the interval shows it. `name`: a
    name to use instead of that of the metric's distance from parity.
    """
    value, gate = verdict.value, f"gate {verdict.below:g} (the most allowed)"
    if verdict.status == "pass" and value.method == "exact":
        return status(verdict.reason, gate, verdict.exit_code)
    figure = estimated(name or gated_name(verdict.metric), value, _in_words(METRICS[verdict.metric], verdict.reduce))
    if verdict.status == "pass" and value.high < verdict.below:
        return status(figure, f"below {gate}", verdict.exit_code)
    if verdict.status == "fail" and math.isfinite(value.estimate) and value.low > verdict.below:
        return status(figure, f"above {gate}", verdict.exit_code)
    if verdict.status == "inconclusive" and verdict.needed_sequences is not None and value.low <= verdict.below:
        # The interval has been printed already.
        more = f"the interval holds the gate, about {_rounded(verdict.needed_sequences)} such sequences are needed"
        return status(figure, gate, verdict.exit_code, more if value.high >= verdict.below else verdict.reason)
    return status(figure, gate, verdict.exit_code, verdict.reason)


def _rounded(count: int) -> str:
    """A number of sequences as an estimate is told: of 1,000 and more two digits are kept."""
    return f"{count if count < 1000 else round(count, 2 - len(str(count))):,}"


def unit(verdict: Verdict) -> str:
    """`nats per token`, or `per sequence` for a plain number."""
    return _unit(METRICS[verdict.metric], verdict.reduce)


def _unit(metric: Metric, reduce: str) -> str:
    return f"{'nats ' if metric.unit == 'nats' else ''}per {reduce}"


def _in_words(metric: Metric, reduce: str = "token") -> str:
    """What stands in brackets after a metric's name: `KL estimate, nats per token`."""
    return f"{'KL estimate, ' if metric.estimates.startswith(FORWARD_KL) else ''}{_unit(metric, reduce)}"


def estimated(metric: str, value: Interval, words: str = "") -> str:
    """`k3 (KL estimate, nats per token) 2.7e-04 [2.1e-04, 3.7e-04]`; `words` replace those in the first brackets."""
    name = f"{metric} ({words or _in_words(METRICS[metric])})"
    if not math.isfinite(value.estimate):
        return f"{name} {value.estimate}"
    if math.isinf(value.low) and math.isinf(value.high):
        return f"{name} {value.estimate:.2g}, no interval"
    return f"{name} {value.estimate:.2g} {between(value.low, value.high, '.2g')}"
