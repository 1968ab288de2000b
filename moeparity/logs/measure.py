"""Measures a log in one reading: metrics with intervals, groups, the worst sequences, a verdict, a diagnosis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from moeparity.errors import MoeparityError, counted
from moeparity.logs import diagnosis
from moeparity.logs.chunks import Chunker
from moeparity.logs.diagnosis.show import diagnosis_lines
from moeparity.logs.record import Sequence as Record
from moeparity.logs.report import (
    MOST_DRAWN,
    LogFile,
    LogGroup,
    LogGrouping,
    LogMetric,
    LogPlots,
    LogReport,
    Outlier,
    SequenceMean,
)
from moeparity.logs.request import MetricsRequest
from moeparity.logs.series.data import Summary
from moeparity.logs.series.pictures import chart_of
from moeparity.logs.series.summary import of_steps, summarise
from moeparity.metrics.accumulate import Accumulator
from moeparity.metrics.chunk import Chunk
from moeparity.metrics.declaration import Metric
from moeparity.metrics.gated import from_parity, shift_interval
from moeparity.metrics.gating import gated_name, parity
from moeparity.metrics.groups import Groups, name
from moeparity.metrics.registry import METRICS, PRIMARY
from moeparity.metrics.verdict import Gate, Interval, Verdict, judge

SERIES = ("k3", "mean_abs_delta")
"""The metrics that are followed over steps."""
_OUTLIERS = 5


@dataclass(slots=True)
class Measurement:
    """Everything that is accumulated while a log is read once. names: by way of grouping, what labels of tokens stand
    for.
    """

    request: MetricsRequest
    names: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    metrics: tuple[Metric, ...] = field(init=False)
    totals: Accumulator = field(init=False)
    groups: tuple[Groups, ...] = field(init=False)
    steps: Groups = field(init=False)
    positions: Groups | None = field(init=False)
    chunker: Chunker = field(default_factory=Chunker)
    observer: diagnosis.Observer = field(default_factory=diagnosis.Observer)
    worst: list[Outlier] = field(default_factory=list)
    _intervals: dict[tuple[str, str], Interval] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.metrics = self.request.selection()
        self.totals = Accumulator(self.metrics)
        self.groups = tuple(Groups(by) for by in self.request.ways())
        self.steps = next((groups for groups in self.groups if groups.by == "step"), Groups("step"))
        by_position = next((groups for groups in self.groups if groups.by == "position"), Groups("position"))
        self.positions = by_position if self.request.plots else None

    def add(self, chunk: Chunk) -> None:
        """Take in whole sequences, which must have gone through `noted` before."""
        self.totals.add(chunk)
        self.observer.add(chunk)
        every = filter(None, (self.steps, self.positions, *self.groups))
        for groups in {id(grouping): grouping for grouping in every}.values():
            groups.add(chunk)
        self.worst = _worst([*self.worst, *_outliers(chunk)])

    def noted(self, sequences: Iterable[Record]) -> Iterator[Record]:
        """The same sequences; what they say about their sampler is noted as they pass."""
        for sequence in sequences:
            self.observer.note(sequence)
            yield sequence

    def series(self) -> tuple[Summary, ...]:
        """`SERIES` over the steps of the log; empty unless there are at least two steps."""
        if len(self.steps.parts) < 2:
            return ()
        return tuple(summarise(of_steps(METRICS[metric], self.steps.parts)) for metric in SERIES)

    def report(self, files: tuple[LogFile, ...], left_out: Iterable[str] = ()) -> LogReport:
        """The report on everything taken in."""
        judgement, series = self.observer.diagnosis(), self.series()
        codes = {"group": self.chunker.groups, "class": self.chunker.classes}
        names = {by: {code: name for name, code in of_way.items()} for by, of_way in codes.items()} | {**self.names}
        sentences = list(left_out)
        if self.observer.lost:
            sentences.append(f"{counted(self.observer.lost, 'scored token')} without a counterpart, since ids differ")
        if self.chunker.unscored:
            sentences.append(f"{counted(self.chunker.unscored, 'sequence')} without a scored token")
        if self.totals.repeated:
            repetitions = counted(self.totals.repeated, "repeated sequence")
            sentences.append(f"of intervals: {repetitions}, counted once with what is repeated")
        return LogReport(
            files=files,
            sequences=len(self.totals.ids),
            tokens=self.totals.tokens,
            left_out=tuple(sentences),
            infinite=self.totals.infinite,
            overflowing=self.totals.overflowing,
            verdict=self._verdict(),
            primary=PRIMARY,
            metrics=tuple(self._metric(metric) for metric in self.metrics),
            groupings=tuple(_grouping(groups, names.get(groups.by, {})) for groups in self.groups),
            outliers=tuple(self.worst),
            series=series,
            series_text=tuple(line for summary in series for line in (*chart_of(summary), *summary.lines())),
            plots=None if self.positions is None else self._plots(self.positions),
            diagnosis=judgement,
            diagnosis_text=tuple(diagnosis_lines(judgement)),
        )

    def _plots(self, positions: Groups) -> LogPlots:
        gate = self.request.gate
        metric = METRICS["k3" if gate is None else gate.metric]
        sums, counts = self.totals.per_sequence(metric)
        values = sums / counts + metric.reduce.offset
        # NaN and infinity come first, since readers look for them.
        order = values.nan_to_num(nan=torch.inf).argsort(descending=True, stable=True)
        drawn = sorted(order[:MOST_DRAWN].tolist())
        means = (
            SequenceMean(id=self.totals.ids[row], tokens=int(self.totals.counts[row]), value=float(values[row]))
            for row in drawn
        )
        unit = "" if metric.unit == "1" else metric.unit
        return LogPlots(metric=metric.name, unit=unit, sequences=tuple(means), positions=_grouping(positions, {}))

    def _metric(self, metric: Metric) -> LogMetric:
        missing = self.totals.missing.get(metric.name, "")
        value = self._value(metric)
        return LogMetric(
            name=metric.name,
            set=metric.set,
            value=value,
            unit=metric.unit,
            reduce=metric.reduce.kind,
            formula=metric.formula,
            estimates=metric.estimates,
            clamp=metric.clamp,
            source=str(metric.source),
            healthy=metric.healthy,
            alarm=metric.alarm,
            alarmed=not missing and self.totals.tokens > 0 and metric.alarms(value.estimate),
            missing=missing,
        )

    def _value(self, metric: Metric) -> Interval:
        if not metric.reduce.has_interval or metric.name in self.totals.missing:
            estimate = self.totals.estimate(metric)
            return Interval(estimate=estimate, low=-torch.inf, high=torch.inf, level=0.95, method="none")
        # Frameworks share quantities, and intervals take most of the time.
        key = (metric.reduce.kind, metric.reduce.of)
        if key not in self._intervals:
            self._intervals[key] = self.totals.interval(metric)
        return shift_interval(self._intervals[key], metric.reduce.offset)

    def _verdict(self) -> Verdict | None:
        gate = self.request.gate
        if gate is None:
            return None
        metric = METRICS[gate.metric]
        if metric.name in self.totals.missing:
            raise MoeparityError(f"gate: {metric.name} cannot be computed: {self.totals.missing[metric.name]}.")
        at = parity(metric)
        value = self.totals.interval(metric)
        value = shift_interval(value, metric.reduce.offset)
        remark = f", as a distance from {at:g}" if gated_name(metric.name).startswith("|") else ""
        reduce = "token" if metric.reduce.kind == "token mean" else "sequence"
        gated = Gate(metric=metric.name, below=gate.below - at, reduce=reduce)
        verdict = judge(from_parity(metric, value), gated, bit_equal=False, nonfinite=0)
        if verdict.status == "pass" and self.observer.lost:
            reason = f"{verdict.reason}, but {counted(self.observer.lost, 'scored token')} could not be compared"
            verdict = replace(verdict, status="inconclusive", reason=reason)
        return replace(verdict, reason=f"{verdict.reason}{remark}", below=gate.below, value=value)


def measure(sequences: Iterable[Record], request: MetricsRequest, files: tuple[LogFile, ...] = ()) -> LogReport:
    """The report of a stream of sequences, read once in bounded memory. Raises MoeparityError and LogError."""
    measurement = Measurement(request)
    for chunk in measurement.chunker.chunks(measurement.noted(sequences)):
        measurement.add(chunk)
    return measurement.report(files)


def _grouping(groups: Groups, names: Mapping[int, str]) -> LogGrouping:
    parts = []
    for key, part in groups:
        k3 = METRICS["k3"]
        parts.append(
            LogGroup(
                name=names.get(key) or name(groups.by, key),
                sequences=len(part.ids),
                tokens=part.tokens,
                k3=part.interval(k3),
                values={metric.name: part.estimate(metric) for metric in part.metrics},
            )
        )
    return LogGrouping(by=groups.by, groups=tuple(parts), unknown=groups.unknown)


def _outliers(chunk: Chunk) -> list[Outlier]:
    """The sequences of a chunk with the largest mean |delta|."""
    part = Accumulator((METRICS["mean_abs_delta"], METRICS["k3"]))
    part.add(chunk)
    counts = part.counts
    means = {of: part.sums(of) / counts for of in ("abs_delta", "k3")} if counts.numel() else {}
    if not means:
        return []
    rows = chunk.counts.nonzero().squeeze(-1).tolist()
    best = means["abs_delta"].topk(min(_OUTLIERS, counts.numel())).indices.tolist()
    return [
        Outlier(
            id=chunk.ids[rows[index]],
            where=str(chunk.where[rows[index]]),
            tokens=int(counts[index]),
            mean_abs_delta=float(means["abs_delta"][index]),
            k3=float(means["k3"][index]),
        )
        for index in best
    ]


def _worst(outliers: list[Outlier]) -> list[Outlier]:
    return sorted(outliers, key=lambda outlier: -outlier.mean_abs_delta)[:_OUTLIERS]
