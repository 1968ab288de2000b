"""Logs measured: from sequences to metrics with intervals, groups, the worst sequences, a verdict and a diagnosis."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from glob import glob
from pathlib import Path
from typing import get_args

import torch

from moeparity import diagnosis, logs
from moeparity.diagnosis.text import lines
from moeparity.errors import MoeparityError, SpecError, Where, did_you_mean, display_path, listed
from moeparity.logs import Join
from moeparity.logs.chunks import Chunker
from moeparity.logs.record import Sequence as Record
from moeparity.metrics.accumulate import Accumulator
from moeparity.metrics.chunk import Chunk
from moeparity.metrics.common import PRIMARY
from moeparity.metrics.declaration import By, Metric
from moeparity.metrics.groups import Groups, name
from moeparity.metrics.quantities import SHARES
from moeparity.metrics.registry import METRICS, find, of_sets
from moeparity.observe import statistics
from moeparity.progress import Callback, Progress
from moeparity.report.log import LogFile, LogGroup, LogGrouping, LogMetric, LogReport, Outlier
from moeparity.report.model import Interval, Verdict
from moeparity.series import Summary, of_steps, summarise
from moeparity.series.figure import save_series
from moeparity.series.terminal import chart
from moeparity.spec.schema import LogCheck

SERIES = ("k3", "mean_abs_delta")
"""The metrics that are followed over steps."""
FEWEST_DRAWN = 4
"""Steps from which on a series is drawn."""
_DRAWS = 40_000_000
_OUTLIERS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LogGate:
    """A bound below which a metric must lie for parity."""

    metric: str
    below: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is wanted of a log: sets of metrics beside `common`, ways of grouping, single metrics, a gate."""

    sets: Sequence[str] = ()
    by: Sequence[str] = ()
    metrics: Sequence[str] = ()
    gate: LogGate | None = None

    def ways(self) -> tuple[By, ...]:
        """The ways of grouping. Raises MoeparityError for an unknown one."""
        for each in self.by:
            if each not in get_args(By):
                raise MoeparityError(
                    f"--by: {each!r} is no way of grouping tokens; expected one of {listed(get_args(By))}."
                    f"{did_you_mean(each, get_args(By))}"
                )
        return tuple(way for way in get_args(By) if way in self.by)

    def chosen(self) -> tuple[Metric, ...]:
        """The metrics to compute. Raises MoeparityError for an unknown name, or a gate on what is no mean."""
        more = [find(each, "metrics") for each in self.metrics]
        if self.gate is not None:
            gated = find(self.gate.metric, "gate")
            if not gated.reduce.has_interval:
                raise MoeparityError(
                    f"gate: {gated.name} is a {gated.reduce.kind}, of which there is no interval over sequences; "
                    "expected a mean, such as k3. Bound its estimate under `expect: {metrics: ...}` instead."
                )
            more.append(gated)
        return tuple(dict.fromkeys([*of_sets(self.sets), *more]))


def read_gate(text: str) -> LogGate:
    """`k3<1e-3` as a gate. Raises MoeparityError."""
    found = re.fullmatch(r"\s*([\w./-]+)\s*<\s*([0-9.]+(?:[eE][+-]?\d+)?)\s*", text)
    try:
        below = float(found[2]) if found else 0.0
    except ValueError:
        below = 0.0
    if found is None or not below > 0:
        raise MoeparityError(
            f"--gate: {text!r} is no gate; expected a metric, `<` and a number above 0, as in 'k3<1e-3'."
        )
    return LogGate(metric=found[1], below=below)


@dataclass(slots=True)
class Measurement:
    """Everything that is accumulated while a log goes by once."""

    asked: Asked
    metrics: tuple[Metric, ...] = field(init=False)
    totals: Accumulator = field(init=False)
    groups: tuple[Groups, ...] = field(init=False)
    steps: Groups = field(init=False)
    chunker: Chunker = field(default_factory=Chunker)
    observer: diagnosis.Observer = field(default_factory=diagnosis.Observer)
    worst: list[Outlier] = field(default_factory=list)
    _intervals: dict[tuple[str, str], statistics.Interval] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.metrics = self.asked.chosen()
        self.totals = Accumulator(self.metrics)
        self.groups = tuple(Groups(by) for by in self.asked.ways())
        self.steps = next((groups for groups in self.groups if groups.by == "step"), Groups("step"))

    def add(self, chunk: Chunk) -> None:
        """Take in whole sequences, each of which `noted` has seen."""
        self.totals.add(chunk)
        self.observer.add(chunk)
        for groups in {id(each): each for each in (self.steps, *self.groups)}.values():
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
        return tuple(summarise(of_steps(METRICS[each], self.steps.parts)) for each in SERIES)

    def report(self, files: tuple[LogFile, ...], left_out: Iterable[str] = ()) -> LogReport:
        """What was found."""
        found, series = self.observer.diagnosis(), self.series()
        codes = {code: group for group, code in self.chunker.groups.items()}
        said = list(left_out)
        if self.chunker.unscored:
            said.append(f"{self.chunker.unscored} sequences have no scored token")
        return LogReport(
            files=files,
            sequences=len(self.totals.ids),
            tokens=self.totals.tokens,
            left_out=tuple(said),
            infinite=self.totals.infinite,
            overflowing=self.totals.overflowing,
            verdict=self._verdict(),
            primary=PRIMARY,
            metrics=tuple(self._metric(metric) for metric in self.metrics),
            groupings=tuple(_grouping(groups, codes) for groups in self.groups),
            outliers=tuple(self.worst),
            series=tuple(summary.to_json() for summary in series),
            series_text=tuple(line for summary in series for line in _told(summary)),
            diagnosis=found.to_json(),
            diagnosis_text=tuple(lines(found)),
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
            found = self.totals.estimate(metric)
            return Interval(estimate=found, low=-torch.inf, high=torch.inf, level=0.95, method="none")
        # Frameworks share quantities, and an interval is what costs.
        key = (metric.reduce.kind, metric.reduce.of)
        if key not in self._intervals:
            self._intervals[key] = interval(self.totals, metric)
        return plain(shifted(self._intervals[key], metric.reduce.offset))

    def _verdict(self) -> Verdict | None:
        gate = self.asked.gate
        if gate is None:
            return None
        metric = METRICS[gate.metric]
        if metric.name in self.totals.missing:
            raise MoeparityError(f"gate: {metric.name} cannot be computed: {self.totals.missing[metric.name]}.")
        found = shifted(interval(self.totals, metric), metric.reduce.offset)
        judged = statistics.judge(found, gate.below, bit_equal=False, nonfinite=0)
        return Verdict(
            status=judged.status,
            reason=judged.reason,
            metric=metric.name,
            reduce="token" if metric.reduce.kind == "token mean" else "sequence",
            below=gate.below,
            value=plain(found),
            needed_sequences=judged.needed_sequences,
            needed_tokens=judged.needed_tokens,
        )


def _told(summary: Summary) -> list[str]:
    """In words, and as a chart where there is something to see."""
    drawn = chart(summary) if len(summary.series.points) >= FEWEST_DRAWN else []
    return [*drawn, *summary.lines()]


def interval(totals: Accumulator, metric: Metric) -> statistics.Interval:
    """The bootstrap-t interval over sequences of a mean, without its offset; 2000 resamples, fewer from 20,000 on.

    A rate of events of which none was seen is bounded by 3 / n instead, n tokens or sequences.
    """
    sums, counts = totals.per_sequence(metric)
    resamples = max(400, min(2000, _DRAWS // max(1, sums.numel())))
    found = statistics.token_mean(sums, counts, resamples=resamples)
    if metric.reduce.of in SHARES and found.method == "exact":
        # That an event was not seen does not make its rate 0.
        return replace(found, tokens=totals.tokens, high=min(1.0, 3 / found.tokens), method="rule of three")
    return replace(found, tokens=totals.tokens)


def shifted(found: statistics.Interval, offset: float) -> statistics.Interval:
    """The same interval moved by `offset`."""
    return replace(found, estimate=found.estimate + offset, low=found.low + offset, high=found.high + offset)


def plain(found: statistics.Interval) -> Interval:
    """As reports hold it."""
    return Interval(estimate=found.estimate, low=found.low, high=found.high, level=found.level, method=found.method)


def measure(sequences: Iterable[Record], asked: Asked, files: tuple[LogFile, ...] = ()) -> LogReport:
    """The report of a stream of sequences, read once, in bounded memory. Raises MoeparityError and LogError."""
    measurement = Measurement(asked)
    for chunk in measurement.chunker.chunks(measurement.noted(sequences)):
        measurement.add(chunk)
    return measurement.report(files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How files are read; as `moeparity.logs.open`."""

    trainer: Sequence[Path] = ()
    format: str | None = None
    trainer_format: str | None = None
    join: Join = "id"
    partial: bool = False


def measure_files(
    paths: Sequence[Path],
    asked: Asked,
    opening: Opening | None = None,
    progress: Callback | None = None,
    plot: Path | None = None,
) -> LogReport:
    """The report of log files, joined where each holds one side; `plot` is a PNG or SVG of its series over steps.

    Raises LogError, MoeparityError.
    """
    how = opening or Opening()
    measurement = Measurement(asked)
    log = logs.open(
        paths,
        trainer=how.trainer,
        format=how.format,
        trainer_format=how.trainer_format,
        join=how.join,
        partial=how.partial,
    )
    for chunk in measurement.chunker.chunks(measurement.noted(log)):
        measurement.add(chunk)
        if progress is not None:
            progress(_so_far(measurement.totals))
    if plot is not None:
        _plot(measurement.series(), plot)
    left_out = [f"{log.left_out} sequences that only one side has"] if log.left_out else []
    return measurement.report(tuple(_file(path, format) for path, format in log.files), left_out)


def _plot(series: tuple[Summary, ...], path: Path) -> None:
    if not series:
        raise MoeparityError(
            f"--plot {display_path(path)}: there is nothing to draw: the log does not tell of two steps or more."
        )
    save_series(list(series), path)


def _so_far(totals: Accumulator) -> Progress:
    # How many there will be is known at the end only.
    return Progress(
        step="reading", at=f"{len(totals.ids)} sequences", done=0, total=1, work=totals.tokens, unit="tokens"
    )


def _file(path: Path, format: logs.Format) -> LogFile:
    by_hand = f"reader tested on a file {format.fixture}" if "by hand" in format.fixture else ""
    return LogFile(path=display_path(path), format=format.name, note=by_hand)


def measure_check(check: LogCheck, where: Where, progress: Callback | None = None) -> LogReport:
    """The report that a `kind: log` is about. Raises SpecError for what it names wrongly, and LogError."""
    bounded = tuple(check.expect.metrics or {})
    try:
        asked = Asked(metrics=bounded, gate=LogGate(metric=check.gate.metric, below=check.gate.below))
        asked.chosen()
    except MoeparityError as error:
        raise SpecError(f"{where}: {error}") from None
    opening = Opening(
        trainer=_matching(check.trainer, where, "trainer"),
        format=check.format,
        trainer_format=check.trainer_format,
        join=check.join,
        partial=check.partial,
    )
    return measure_files(_matching(check.files, where, "files"), asked, opening, progress)


def _matching(patterns: Sequence[str], where: Where, key: str) -> list[Path]:
    """Files beside the check, the matches of a pattern in order of their names. Raises SpecError for one without."""
    found: list[Path] = []
    for pattern in patterns:
        matches = [where.path.parent / pattern]
        if "*" in pattern:
            matches = sorted(map(Path, glob(str(matches[0]))))  # noqa: PTH207  an absolute pattern
        if not matches or not all(match.exists() for match in matches):
            raise SpecError(
                f"{where}: {key}: there is no file {pattern!r}. A relative path starts at this file's folder."
            )
        found += matches
    return found


def _grouping(groups: Groups, codes: dict[int, str]) -> LogGrouping:
    found = []
    for key, part in groups:
        k3 = METRICS["k3"]
        found.append(
            LogGroup(
                name=codes[key] if groups.by == "group" else name(groups.by, key),
                sequences=len(part.ids),
                tokens=part.tokens,
                k3=plain(interval(part, k3)),
                values={metric.name: part.estimate(metric) for metric in part.metrics},
            )
        )
    return LogGrouping(by=groups.by, groups=tuple(found), unknown=groups.unknown)


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


def _worst(found: list[Outlier]) -> list[Outlier]:
    return sorted(found, key=lambda one: -one.mean_abs_delta)[:_OUTLIERS]
