"""A log measured as it goes by once: metrics with intervals, groups, the worst sequences, a verdict, a diagnosis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import torch

from moeparity.errors import MoeparityError, counted
from moeparity.logs import diagnosis
from moeparity.logs.chunks import Chunker
from moeparity.logs.diagnosis.finding import lines
from moeparity.logs.record import Sequence as Record
from moeparity.logs.report import LogFile, LogGroup, LogGrouping, LogMetric, LogReport, Outlier
from moeparity.logs.request import Request
from moeparity.logs.series import Summary, of_steps, summarise
from moeparity.logs.series.pictures import chart
from moeparity.metrics.accumulate import Accumulator
from moeparity.metrics.chunk import Chunk
from moeparity.metrics.common import PRIMARY
from moeparity.metrics.declaration import Metric
from moeparity.metrics.groups import Groups, name
from moeparity.metrics.interval import token_mean
from moeparity.metrics.quantities import SHARES, TWO_SIDED
from moeparity.metrics.registry import METRICS
from moeparity.metrics.verdict import Gate, Interval, Verdict, judge

SERIES = ("k3", "mean_abs_delta")
"""The metrics that are followed over steps."""
FEWEST_DRAWN = 4
"""Steps from which on a series is drawn."""
_DRAWS = 40_000_000
_OUTLIERS = 5


@dataclass(slots=True)
class Measurement:
    """Everything that is accumulated while a log goes by once."""

    request: Request
    metrics: tuple[Metric, ...] = field(init=False)
    totals: Accumulator = field(init=False)
    groups: tuple[Groups, ...] = field(init=False)
    steps: Groups = field(init=False)
    chunker: Chunker = field(default_factory=Chunker)
    observer: diagnosis.Observer = field(default_factory=diagnosis.Observer)
    worst: list[Outlier] = field(default_factory=list)
    _intervals: dict[tuple[str, str], Interval] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.metrics = self.request.selection()
        self.totals = Accumulator(self.metrics)
        self.groups = tuple(Groups(by) for by in self.request.ways())
        self.steps = next((groups for groups in self.groups if groups.by == "step"), Groups("step"))

    def add(self, chunk: Chunk) -> None:
        """Take in whole sequences, each of which `noted` has seen."""
        self.totals.add(chunk)
        self.observer.add(chunk)
        for groups in {id(grouping): grouping for grouping in (self.steps, *self.groups)}.values():
            groups.add(chunk)
        self.worst = _worst([*self.worst, *_outliers(chunk)])

    def noted(self, sequences: Iterable[Record]) -> Iterator[Record]:
        """The same sequences, with what they say of their sampler kept."""
        for sequence in sequences:
            self.observer.note(sequence)
            yield sequence

    def series(self) -> tuple[Summary, ...]:
        """`SERIES` over the steps of the log, of which there must be two."""
        if len(self.steps.parts) < 2:
            return ()
        return tuple(summarise(of_steps(METRICS[metric], self.steps.parts)) for metric in SERIES)

    def report(self, files: tuple[LogFile, ...], left_out: Iterable[str] = ()) -> LogReport:
        """What was found."""
        judgement, series = self.observer.diagnosis(), self.series()
        codes = {code: group for group, code in self.chunker.groups.items()}
        sentences = list(left_out)
        if self.chunker.unscored:
            sentences.append(f"{counted(self.chunker.unscored, 'sequence')} without a scored token")
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
            groupings=tuple(_grouping(groups, codes) for groups in self.groups),
            outliers=tuple(self.worst),
            series=tuple(summary.to_json() for summary in series),
            series_text=tuple(line for summary in series for line in _series_lines(summary)),
            diagnosis=judgement.to_json(),
            diagnosis_text=tuple(lines(judgement)),
        )

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
        # Frameworks share quantities, and an interval is what costs.
        key = (metric.reduce.kind, metric.reduce.of)
        if key not in self._intervals:
            self._intervals[key] = interval(self.totals, metric)
        return shift_interval(self._intervals[key], metric.reduce.offset)

    def _verdict(self) -> Verdict | None:
        gate = self.request.gate
        if gate is None:
            return None
        metric = METRICS[gate.metric]
        if metric.name in self.totals.missing:
            raise MoeparityError(f"gate: {metric.name} cannot be computed: {self.totals.missing[metric.name]}.")
        value = shift_interval(interval(self.totals, metric), metric.reduce.offset)
        gated, below, remark = value, gate.below, ""
        if metric.reduce.of in TWO_SIDED:
            parity = TWO_SIDED[metric.reduce.of] + metric.reduce.offset
            gated, below, remark = distance(value, parity), gate.below - parity, f", as a distance from {parity:g}"
        reduce = "token" if metric.reduce.kind == "token mean" else "sequence"
        verdict = judge(gated, Gate(metric=metric.name, below=below, reduce=reduce), bit_equal=False, nonfinite=0)
        return replace(verdict, reason=f"{verdict.reason}{remark}", below=gate.below, value=value)


def _series_lines(summary: Summary) -> list[str]:
    """In words, and as a chart where there is something to see."""
    picture = chart(summary) if len(summary.series.points) >= FEWEST_DRAWN else []
    return [*picture, *summary.lines()]


def interval(totals: Accumulator, metric: Metric) -> Interval:
    """The bootstrap-t interval over sequences of a mean, without its offset; 2000 resamples, fewer from 20,000 on.

    A rate of events of which none was seen is bounded by 3 / n instead, n tokens or sequences.
    """
    sums, counts = totals.per_sequence(metric)
    resamples = max(400, min(2000, _DRAWS // max(1, sums.numel())))
    bootstrap = token_mean(sums, counts, resamples=resamples)
    if metric.reduce.of in SHARES and bootstrap.method == "exact":
        # That an event was not seen does not make its rate 0.
        return replace(bootstrap, tokens=totals.tokens, high=min(1.0, 3 / bootstrap.tokens), method="rule of three")
    return replace(bootstrap, tokens=totals.tokens)


def shift_interval(value: Interval, offset: float) -> Interval:
    """The same interval moved by `offset`."""
    return replace(value, estimate=value.estimate + offset, low=value.low + offset, high=value.high + offset)


def distance(value: Interval, parity: float) -> Interval:
    """The interval of the distance from `parity`, on either side of it."""
    low, high = value.low - parity, value.high - parity
    least = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
    return replace(value, estimate=abs(value.estimate - parity), low=least, high=max(abs(low), abs(high)))


def measure(sequences: Iterable[Record], request: Request, files: tuple[LogFile, ...] = ()) -> LogReport:
    """The report of a stream of sequences, read once, in bounded memory. Raises MoeparityError and LogError."""
    measurement = Measurement(request)
    for chunk in measurement.chunker.chunks(measurement.noted(sequences)):
        measurement.add(chunk)
    return measurement.report(files)


def _grouping(groups: Groups, codes: dict[int, str]) -> LogGrouping:
    parts = []
    for key, part in groups:
        k3 = METRICS["k3"]
        parts.append(
            LogGroup(
                name=codes[key] if groups.by == "group" else name(groups.by, key),
                sequences=len(part.ids),
                tokens=part.tokens,
                k3=interval(part, k3),
                values={metric.name: part.estimate(metric) for metric in part.metrics},
            )
        )
    return LogGrouping(by=groups.by, groups=tuple(parts), unknown=groups.unknown)


def _outliers(chunk: Chunk) -> list[Outlier]:
    """The sequences of a chunk with the greatest mean |delta|."""
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
