"""What was found in a log, as frozen plain data: what the terminal shows and what `--json` writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moeparity.metrics.verdict import Interval, Verdict
from moeparity.output.json import to_json

SCHEMA = "moeparity.log/1"
"""Grows when a field changes its meaning or goes; new fields may appear without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """One file as it was read. `note` says what its reader could not be tested on."""

    path: str
    format: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMetric:
    """One metric of the log.

    value: the estimate, with bounds where it is a mean over sequences of known spread; method "none" elsewhere.
    missing: why there is no number, else empty. alarmed: a published alarm is raised by the estimate.
    """

    name: str
    set: str
    value: Interval
    unit: str
    reduce: str
    formula: str
    estimates: str
    clamp: str
    source: str
    healthy: str
    alarm: str
    alarmed: bool
    missing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogGroup:
    """The scored tokens of one group; `values` by metric, `k3` with its interval."""

    name: str
    sequences: int
    tokens: int
    k3: Interval
    values: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogGrouping:
    """All groups of one way of grouping; `unknown` tokens of which the log does not say."""

    by: str
    groups: tuple[LogGroup, ...]
    unknown: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlier:
    """A sequence far off: where it stands, its own mean |delta| and k3, nats per token."""

    id: str
    where: str
    tokens: int
    mean_abs_delta: float
    k3: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceMean:
    """A sequence's own mean of a metric over its scored `tokens`."""

    id: str
    tokens: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlots:
    """What a page draws of a log.

    metric: the gate's, else k3. sequences: its mean in each, in the order of the log; of more than `MOST_DRAWN` those
    with the greatest. positions: k3 by place in the sequence.
    """

    metric: str
    unit: str
    sequences: tuple[SequenceMean, ...]
    positions: LogGrouping


MOST_DRAWN = 2000
"""Sequences that a page draws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReport:
    """Everything found in a log.

    left_out: what was not counted, each in a sentence. infinite: scored tokens with infinite delta, because a side gave
    them probability 0. overflowing: scored tokens with |delta| > 88.7, where a trainer's fp32 shows inf or 0.
    series: as `series.Summary.to_json` gives them, where the log has several steps. series_text: chart and words.
    plots: what the page draws, where one was asked for.
    diagnosis: as `diagnosis.Diagnosis.to_json` gives it. diagnosis_text: its lines, which end with what to do.
    """

    files: tuple[LogFile, ...]
    sequences: int
    tokens: int
    left_out: tuple[str, ...]
    infinite: int
    overflowing: int
    verdict: Verdict | None
    primary: tuple[str, ...]
    metrics: tuple[LogMetric, ...]
    groupings: tuple[LogGrouping, ...] = ()
    outliers: tuple[Outlier, ...] = ()
    series: tuple[dict[str, Any], ...] = ()
    series_text: tuple[str, ...] = ()
    plots: LogPlots | None = None
    diagnosis: dict[str, Any] | None = None
    diagnosis_text: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 the gate is passed, or there is none; 1 it is not; 3 inconclusive."""
        return 0 if self.verdict is None else self.verdict.exit_code

    def metric(self, name: str) -> LogMetric:
        """The metric of that name. Raises KeyError."""
        return {metric.name: metric for metric in self.metrics}[name]

    @property
    def causes(self) -> tuple[str, ...]:
        """The causes that the diagnosis names."""
        findings = [] if self.diagnosis is None else self.diagnosis["findings"]
        return tuple(finding["name"] for finding in findings if finding["verdict"] == "named")

    def to_json(self) -> str:
        """The report as JSON: strict, so that a number that is not finite is written as the word nan, inf or -inf."""
        return to_json(SCHEMA, self)
