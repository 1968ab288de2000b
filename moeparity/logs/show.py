"""A log's report as shown: verdict and diagnosis first, then metrics, groups and outliers, with figures; also repeated
runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from moeparity.errors import counted
from moeparity.logs.diagnosis.show import diagnosed
from moeparity.logs.repeats import RepeatedRuns
from moeparity.logs.report import MOST_DRAWN, LogGrouping, LogMetric, LogPlots, LogReport, Outlier
from moeparity.logs.series.data import Summary
from moeparity.logs.series.pictures import chart_of
from moeparity.logs.series.repeated_batch import Repeats
from moeparity.metrics.verdict import Interval
from moeparity.output.blocks import (
    Block,
    Cell,
    Document,
    Figure,
    Row,
    Status,
    Table,
    columns,
    group,
    lines,
    names,
    notes,
    stacked,
    table,
    warnings,
)
from moeparity.output.figures import Line, Series
from moeparity.output.status import estimated, judged, state_of, status
from moeparity.output.words import enumerated

_ROWS = 20
_FILES = 6


def document(report: LogReport, subject: str, sets: Sequence[str] = ()) -> Document:
    """A log's report, verdict first; `sets` are shown besides the primary metrics."""
    return Document(command="metrics", subject=subject, blocks=tuple(_blocks(report, tuple(sets))))


def _blocks(report: LogReport, sets: tuple[str, ...]) -> Iterator[Block]:
    causes = f"{enumerated(report.causes)} (see the diagnosis)" if report.causes else "none is named"
    state = state_of(report.exit_code, bounded=report.verdict is not None)
    yield Status(state, _status(report), lines=(("cause", causes),))
    yield _head(report)
    yield from warnings(_warnings(report))
    if report.diagnosis is not None:
        yield diagnosed(report.diagnosis)
    yield group("Metrics", *_primary(report))
    for name in dict.fromkeys(metric.set for metric in report.metrics):
        if name in sets or (name != "common" and "all" in sets):
            yield group(f"As {name} defines them", *_table([m for m in report.metrics if m.set == name]))
    for grouping in report.groupings:
        yield group(f"By {grouping.by.replace('_', ' ')}", *_grouping(grouping))
    if report.outliers:
        yield group("Sequences farthest off", _outliers(report.outliers))
    if report.series:
        of_steps = [block for summary in report.series for block in (_steps(summary), lines(*summary.lines()))]
        yield group("Over steps", *of_steps)
    pictures = [] if report.plots is None else [_sequences(report, report.plots), _positions(report.plots)]
    if any(pictures):
        yield group("Where does it come from?", *pictures)


def document_of_runs(runs: RepeatedRuns, subject: str) -> Document:
    """The report of repeated runs: each metric of the same batch, by run."""
    first, *others = runs.lines()
    pictures: list[Figure] = [_of_runs(repeats) for repeats in runs.metrics]
    blocks = (Status("done", first), lines(*others), group("Where does it come from?", *pictures))
    return Document(command="metrics --repeats", subject=subject, blocks=blocks)


def _status(report: LogReport) -> str:
    """The gate's verdict; without a gate, the first primary metric."""
    if report.verdict is not None:
        return judged(report.verdict, report.verdict.metric)
    first = report.metric(report.primary[0])
    return status(estimated(first.name, first.value), "no gate", report.exit_code)


def _head(report: LogReport) -> Table:
    rows: list[tuple[Cell, ...]] = [("" if index else "files", line) for index, line in enumerate(_files(report))]
    rows.append(("scored", f"{counted(report.tokens, 'token')} of {counted(report.sequences, 'sequence')}"))
    rows += [("" if index else "left out", sentence) for index, sentence in enumerate(report.left_out)]
    return names(rows)


def _files(report: LogReport) -> Iterator[str]:
    """A line for each file; for many, the first and the last, and the formats of the others."""
    kinds = [f"({file.format}; {file.note})" if file.note else f"({file.format})" for file in report.files]
    lines = [f"{file.path} {kind}" for file, kind in zip(report.files, kinds, strict=True)]
    if len(lines) > _FILES:
        between = f"... {len(lines) - 2} more {' '.join(dict.fromkeys(kinds[1:-1]))}; --json names all"
        lines = [lines[0], between, lines[-1]]
    yield from lines


def _warnings(report: LogReport) -> Iterator[str]:
    if report.infinite:
        yield (
            f"{counted(report.infinite, 'scored token')} got probability 0 from one side only: delta is infinite, "
            "and so is every mean that does not clamp it"
        )
    if report.overflowing:
        yield (
            f"{counted(report.overflowing, 'scored token')} with |delta| > 88.7: exp overflows in a trainer's fp32, "
            "which logs inf, or 0 where it replaces inf; here it is computed in fp64"
        )


def _primary(report: LogReport) -> Iterator[Block]:
    metrics = [metric for metric in report.metrics if metric.name in report.primary]
    metrics.sort(key=lambda metric: report.primary.index(metric.name))
    yield from _table(metrics)
    yield notes(
        "delta = log P_trainer - log P_sampler on sampled tokens, rho = exp(delta); 95% intervals by bootstrap-t over "
        "sequences."
    )


def _table(metrics: Sequence[LogMetric]) -> Iterator[Block]:
    """A row for each metric, with what is published below one that raises an alarm; then a legend of the marks."""
    yield stacked(columns("estimate", "95%", first="metric"), map(_row, metrics))
    sentences = list(_marks(metrics))
    if sentences:
        yield notes(*sentences)


def _row(metric: LogMetric) -> Row:
    if metric.missing:
        return Row((metric.name, "-", ""), (metric.missing,), "dim")
    mark = "! " if metric.alarmed else ""
    cells = (metric.name, f"{mark}{number(metric.value.estimate)}", bounds(metric.value))
    return Row(cells, (_published(metric),), "bold red") if metric.alarmed else Row(cells)


def _marks(metrics: Sequence[LogMetric]) -> Iterator[str]:
    """The legend of the marks that occur in a table of these metrics."""
    if any(_one_sided(metric.value) for metric in metrics):
        yield (
            "at least, at most: the sides differ in too few sequences to bound the other end; more such sequences "
            "would."
        )
    if any(metric.alarmed for metric in metrics):
        yield "! a published alarm is raised; the healthy ranges were published for other models than this one."


def _published(metric: LogMetric) -> str:
    parts = {"": metric.estimates.partition(";")[0], "healthy ": metric.healthy, "alarm ": metric.alarm}
    if metric.clamp != "none":
        parts["clamped: "] = metric.clamp
    return "; ".join(f"{word}{text}" for word, text in parts.items() if text)


def _grouping(grouping: LogGrouping) -> Iterator[Block]:
    if not grouping.groups:
        yield notes(f"the log does not say ({counted(grouping.unknown, 'token')})")
        return
    groups = grouping.groups
    if len(groups) > _ROWS:
        groups = tuple(sorted(groups, key=lambda group: -group.k3.estimate)[:_ROWS])
    rows = []
    for each in groups:
        values = [each.values[name] for name in ("mean_abs_delta", "max_abs_delta", "mean_ratio", "f2")]
        of_k3 = number(each.k3.estimate), bounds(each.k3)
        rows.append((each.name, str(each.tokens), str(each.sequences), *of_k3, *map(number, values)))
    titles = ("tokens", "sequences", "k3", "95%", "mean |delta|", "max", "E[rho]", "F(2)")
    by, optional = grouping.by.replace("_", " "), ("sequences", "F(2)", "max", "E[rho]")
    yield table(columns(*titles, first=by, optional=optional), rows)
    sentences = []
    if len(grouping.groups) > _ROWS:
        sentences.append(f"the {_ROWS} of {len(grouping.groups)} groups with the greatest k3; --json has all")
    if grouping.unknown:
        sentences.append(f"the log does not say for {counted(grouping.unknown, 'token')}")
    if sentences:
        yield notes(*sentences)


def _outliers(outliers: Sequence[Outlier]) -> Table:
    rows = [
        (str(outlier.tokens), number(outlier.mean_abs_delta), number(outlier.k3), outlier.id, outlier.where)
        for outlier in outliers
    ]
    return table(columns("tokens", "mean |delta|", "k3", "id", last="where", words=("id",)), rows)


def number(value: float) -> str:
    """Four digits, more near 1, as ratios are; or the word nan, inf or -inf."""
    return f"{value:.5f}" if 0.9 < value < 1.1 else f"{value:.4g}"


def _one_sided(value: Interval) -> bool:
    """Whether the data give a bound on one side only."""
    return math.isinf(value.low) != math.isinf(value.high)


def bounds(value: Interval) -> str:
    """`0.0012 to 0.0019`, or `at most 0.99939` if only that side is bounded; "" without an interval."""
    if value.method == "none" or not math.isfinite(value.estimate):
        return ""
    if math.isinf(value.low) and math.isinf(value.high):
        return "too few sequences"
    digits = ".5f" if 0.9 < value.estimate < 1.1 else ".3g"
    if math.isinf(value.low):
        return f"at most {value.high:{digits}}"
    if math.isinf(value.high):
        return f"at least {value.low:{digits}}"
    return f"{value.low:{digits}} to {value.high:{digits}}"


def _sequences(report: LogReport, plots: LogPlots) -> Series | None:
    if not plots.sequences:
        return None
    line = Line(label=f"{plots.metric} of a sequence", values=[each.value for each in plots.sequences], look="points")
    verdict = report.verdict
    left_out = report.sequences - len(plots.sequences)
    return Series(
        title="By sequence",
        name="sequences",
        label=f"{plots.metric} of each sequence",
        x=range(len(plots.sequences)),
        x_label="sequences, in the order of the log",
        y_label=_labelled(plots.metric, plots.unit),
        lines=[line],
        bound=None if verdict is None else (f"gate {verdict.below:g}, on the mean", verdict.below),
        words=[
            [sequence.id, f"{plots.metric} {number(sequence.value)}", f"{sequence.tokens} tokens"]
            for sequence in plots.sequences
        ],
        note=f"The {MOST_DRAWN} with the greatest mean; {left_out} others are not drawn." if left_out else "",
    )


def _positions(plots: LogPlots) -> Series | None:
    groups = plots.positions.groups
    if not groups:
        return None
    line = Line(
        label="k3, with its 95% interval",
        values=[group.k3.estimate for group in groups],
        low=[group.k3.low for group in groups],
        high=[group.k3.high for group in groups],
    )
    return Series(
        title="By position",
        name="positions",
        label="k3 by position in the sequence",
        x=range(len(groups)),
        ticks=[group.name for group in groups],
        x_label="position",
        y_label="k3, nats",
        lines=[line],
        words=[
            [
                f"positions {group.name}",
                f"k3 {number(group.k3.estimate)} {bounds(group.k3)}".rstrip(),
                f"{group.tokens} tokens",
            ]
            for group in groups
        ],
    )


def _steps(summary: Summary) -> Series:
    of, smoothed = summary.series, summary.smoothed
    spikes = {spike.point.step for spike in summary.spikes}
    spiking = [point.value if point.step in spikes else math.nan for point in of.points]
    lines = [
        Line(label=f"{of.metric} of a step", values=of.values, look="points"),
        Line(label=f"moving average, tau {summary.tau:g} steps", values=smoothed),
        Line(label="spike", values=spiking, look="spikes"),
    ]
    return Series(
        title=f"{of.metric} over steps",
        name=f"steps-{of.metric}",
        label=f"{of.metric} over steps",
        x=of.steps,
        x_label="step",
        y_label=_labelled(of.metric, of.unit),
        lines=lines,
        bound=None if of.alarm is None else (f"published alarm {of.alarm:g}", of.alarm),
        words=[
            [
                f"step {point.step}",
                f"{of.metric} {number(point.value)}" + ", a spike" * (point.step in spikes),
                f"average {number(average)}",
                *(f"{carrier.id} carries {carrier.share:.0%}" for carrier in point.carriers),
            ]
            for point, average in zip(of.points, smoothed, strict=True)
        ],
        chart=chart_of(summary),
    )


def _of_runs(repeats: Repeats) -> Series:
    spiking = set(repeats.spiking)
    return Series(
        title=f"{repeats.metric} by run",
        name=f"runs-{repeats.metric}",
        label=f"{repeats.metric} of one batch, by run",
        x=range(len(repeats.values)),
        ticks=[str(number_) for number_ in range(1, len(repeats.values) + 1)],
        x_label="run",
        y_label=repeats.metric,
        lines=[Line(label=repeats.metric, values=repeats.values, look="points")],
        bound=("median", repeats.median) if math.isfinite(repeats.median) else None,
        words=[
            [name, f"{repeats.metric} {number(value)}" + ", a spike" * (index in spiking)]
            for index, (name, value) in enumerate(zip(repeats.names, repeats.values, strict=True))
        ],
    )


def _labelled(metric: str, unit: str) -> str:
    return metric if unit in {"", "1"} else f"{metric}, {unit}"
