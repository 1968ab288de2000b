"""The line that a report opens and closes with: verdict, figure, gate, exit code and why."""

from __future__ import annotations

import math
from typing import Literal

from rich.table import Table
from rich.text import Text

from moeparity.metrics.gating import gated_name
from moeparity.metrics.registry import METRICS
from moeparity.metrics.verdict import Interval, Verdict
from moeparity.output.tables import COLOUR, plain_grid
from moeparity.output.words import between

State = Literal["pass", "fail", "inconclusive", "error", "done"]
"""A verdict; that there is no answer; that nothing was asked that could fail."""

_STATES: dict[int, State] = {0: "pass", 1: "fail", 3: "inconclusive"}

_COLUMN = len("record")
"""The width of the first column, that of the lines of a report's summary."""


def state_of(exit_code: int, *, bounded: bool = True) -> State:
    """The word for an exit code; `bounded` says whether anything could have failed."""
    return _STATES.get(exit_code, "error") if bounded else "done"


def status_line(state: State, text: str) -> Table:
    """The word in the first column, what there is to say beside it. Further rows may be added below."""
    table = plain_grid(2)
    table.columns[0].min_width = _COLUMN
    table.add_row(Text(state.upper(), COLOUR.get(state, "bold red" if state == "error" else "bold")), text)
    return table


def status(figure: str, gate: str, exit_code: int, reason: str = "") -> str:
    """`figure, gate; exit 1: reason`."""
    return f"{figure}, {gate}; exit {exit_code}" + (f": {reason}" if reason else "")


def judged(verdict: Verdict, name: str = "") -> str:
    """A verdict on a metric: `k3 2.7e-04 [2.1e-04, 3.7e-04] nats per token, above gate 0.0001; exit 1`; of equal bits
    that, and the reason where the interval does not say it. `name` is the metric's where its distance is not shown.
    """
    value, gate = verdict.value, f"gate {verdict.below:g}"
    if verdict.status == "pass" and value.method == "exact":
        return status(verdict.reason, gate, verdict.exit_code)
    figure = estimated(name or gated_name(verdict.metric), value, unit(verdict))
    if verdict.status == "pass" and value.high < verdict.below:
        return status(figure, f"below {gate}", verdict.exit_code)
    if verdict.status == "fail" and math.isfinite(value.estimate) and value.low > verdict.below:
        return status(figure, f"above {gate}", verdict.exit_code)
    if verdict.status == "inconclusive" and verdict.needed_sequences is not None and value.low <= verdict.below:
        # The interval stands there already.
        more = f"the interval holds the gate, about {verdict.needed_sequences} such sequences are needed"
        return status(figure, gate, verdict.exit_code, more if value.high >= verdict.below else verdict.reason)
    return status(figure, gate, verdict.exit_code, verdict.reason)


def unit(verdict: Verdict) -> str:
    """`nats per token`, or `per sequence` of what is a plain number."""
    nats = "nats " if METRICS[verdict.metric].unit == "nats" else ""
    return f"{nats}per {verdict.reduce}"


def estimated(metric: str, value: Interval, unit: str) -> str:
    """`k3 2.7e-04 [2.1e-04, 3.7e-04] nats per token`."""
    if not math.isfinite(value.estimate):
        return f"{metric} {value.estimate}"
    if math.isinf(value.low) and math.isinf(value.high):
        return f"{metric} {value.estimate:.2g} {unit} (no interval)"
    return f"{metric} {value.estimate:.2g} {between(value.low, value.high, '.2g')} {unit}"
