"""What was found in a log; plain data for the terminal and `--json`."""

from __future__ import annotations

from dataclasses import dataclass

from moeparity.logs.diagnosis.finding import Diagnosis
from moeparity.logs.series.data import Summary
from moeparity.metrics.verdict import Interval, Verdict
from moeparity.output.json import to_json

SCHEMA = "moeparity.log/1"
"""Schema of the JSON. The number grows if a field changes its meaning or goes; new fields may appear without that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """One file as it was read. note: what its reader could not be tested with."""

    path: str
    format: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMetric:
    """One metric of the log.

    value: the estimate; with bounds if it is a mean over sequences, else with the method "none". missing: why there is
    no number, "" if there is one. alarmed: whether the estimate raises a published alarm.
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
    """All groups of one way of grouping. unknown: how many tokens have no known group."""

    by: str
    groups: tuple[LogGroup, ...]
    unknown: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlier:
    """A sequence with a large difference: its place, its mean |delta| and k3, nats per token."""

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

    metric: the gate's, else k3. sequences: the metric's mean in each, in the order of the log; if there are more than
    `MOST_DRAWN`, those with the largest mean. positions: k3 by position in the sequence.
    """

    metric: str
    unit: str
    sequences: tuple[SequenceMean, ...]
    positions: LogGrouping


MOST_DRAWN = 2000
"""A page draws at most this many sequences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReport:
    """Everything found in a log.

    left_out: what was not counted, in sentences. infinite: number of scored tokens with infinite delta, since a side
    gave them probability 0. overflowing: number of scored tokens with |delta| > 88.7, where a trainer's fp32 gives inf
    or 0.
    series: if the log has several steps; series_text: their charts and words. plots: what the page draws, if it is
    asked for.
    diagnosis_text: the lines of the diagnosis, which end with what to do.
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
    series: tuple[Summary, ...] = ()
    series_text: tuple[str, ...] = ()
    plots: LogPlots | None = None
    diagnosis: Diagnosis | None = None
    diagnosis_text: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 if the gate is passed or there is none, 1 if it is not passed, 3 if it is inconclusive."""
        return 0 if self.verdict is None else self.verdict.exit_code

    def metric(self, name: str) -> LogMetric:
        """The metric of that name. Raises KeyError."""
        return {metric.name: metric for metric in self.metrics}[name]

    @property
    def causes(self) -> tuple[str, ...]:
        """The causes that the diagnosis names."""
        return () if self.diagnosis is None else self.diagnosis.names("named")

    def to_json(self) -> str:
        """The report as strict JSON: NaN and infinities are written as the words nan, inf and -inf."""
        return to_json(SCHEMA, self)
