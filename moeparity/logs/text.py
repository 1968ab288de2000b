"""A LogReport for the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from moeparity.errors import counted
from moeparity.logs.report import LogGrouping, LogMetric, LogReport
from moeparity.metrics.verdict import Interval
from moeparity.output.status import estimated, judged, state_of, status, status_line
from moeparity.output.tables import Stacked, Words, plain_grid, plain_table
from moeparity.output.words import enumerated

_ROWS = 20
_FILES = 6


def print_log(report: LogReport, console: Console, *, sets: Iterable[str] = ()) -> None:
    """Print a log's report, verdict first; beside the primary metrics also those of `sets`."""
    opening = status_line(state_of(report.exit_code, bounded=report.verdict is not None), _status(report))
    opening.add_row("cause", f"{enumerated(report.causes)} (see the diagnosis)" if report.causes else "none is named")
    console.print(opening)
    for title, body in _sections(report, tuple(sets)):
        if title:
            console.print(Text(f"\n{title}", style="bold"))
        console.print(Padding(body, (0, 0, 0, 2 if title else 0), expand=False))
    console.print()
    console.print(opening)


def _status(report: LogReport) -> str:
    """The gate's verdict; without a gate the first of the primary metrics."""
    if report.verdict is not None:
        return judged(report.verdict, report.verdict.metric)
    first = report.metric(report.primary[0])
    return status(estimated(first.name, first.value, "nats per token"), "no gate", report.exit_code)


def _sections(report: LogReport, sets: tuple[str, ...]) -> Iterator[tuple[str, RenderableType]]:
    yield "", _head(report)
    warnings = list(_warnings(report))
    if warnings:
        yield "", Group(*(Words(f"warning: {sentence}", style="yellow") for sentence in warnings))
    yield "Metrics", _primary(report)
    for name in dict.fromkeys(metric.set for metric in report.metrics):
        if name in sets or (name != "common" and "all" in sets):
            yield f"As {name} defines them", _table([m for m in report.metrics if m.set == name])
    for grouping in report.groupings:
        yield f"By {grouping.by.replace('_', ' ')}", _grouping(grouping)
    if report.outliers:
        yield "Sequences farthest off", _outliers(report)
    if report.series_text:
        yield "Over steps", Text("\n".join(report.series_text))
    if report.diagnosis_text:
        yield report.diagnosis_text[0], Text("\n".join(line.removeprefix("  ") for line in report.diagnosis_text[1:]))


def _head(report: LogReport) -> RenderableType:
    table = plain_grid(2)
    for index, line in enumerate(_files(report)):
        table.add_row("" if index else "files", line)
    table.add_row("scored", f"{counted(report.tokens, 'token')} of {counted(report.sequences, 'sequence')}")
    for index, sentence in enumerate(report.left_out):
        table.add_row("" if index else "left out", sentence)
    return table


def _files(report: LogReport) -> Iterator[str]:
    """A line per file; of many the first and the last, and what the others are."""
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


def _primary(report: LogReport) -> RenderableType:
    metrics = [metric for metric in report.metrics if metric.name in report.primary]
    metrics.sort(key=lambda metric: report.primary.index(metric.name))
    note = Words(
        "delta = log P_trainer - log P_sampler on sampled tokens, rho = exp(delta); 95% intervals by bootstrap-t over "
        "sequences.",
        style="dim",
    )
    return Group(_table(metrics), note)


def _table(metrics: Sequence[LogMetric]) -> RenderableType:
    """A line for each; of one that raises an alarm what is published of it, below. Then what its marks mean."""
    table = Stacked("metric", "estimate", "95%")
    for metric in metrics:
        if metric.missing:
            table.add_row(metric.name, "-", "", below=[metric.missing], style="dim")
            continue
        mark = "! " if metric.alarmed else ""
        table.add_row(
            metric.name, f"{mark}{number(metric.value.estimate)}", bounds(metric.value),
            below=[_published(metric)] * metric.alarmed, style="bold red" if metric.alarmed else "",
        )  # fmt: skip
    return Group(table, *(Words(sentence, style="dim") for sentence in _marks(metrics)))


def _marks(metrics: Sequence[LogMetric]) -> Iterator[str]:
    """What the marks mean that stand in a table of these metrics."""
    if any(_one_sided(metric.value) for metric in metrics):
        yield (
            "at least, at most: too few sequences carry what differs to bound the other side; more sequences that "
            "differ would."
        )
    if any(metric.alarmed for metric in metrics):
        yield "! a published alarm is raised; healthy ranges are those published, of other models than this one."


def _published(metric: LogMetric) -> str:
    parts = {"": metric.estimates.partition(";")[0], "healthy ": metric.healthy, "alarm ": metric.alarm}
    if metric.clamp != "none":
        parts["clamped: "] = metric.clamp
    return "; ".join(f"{word}{text}" for word, text in parts.items() if text)


def _grouping(grouping: LogGrouping) -> RenderableType:
    if not grouping.groups:
        return Text(f"the log does not say ({counted(grouping.unknown, 'token')})", style="dim")
    table = plain_table("tokens", "sequences", "k3", "95%", "mean |delta|", "max", "E[rho]", "F(2)",
                        names=grouping.by.replace("_", " "), names_first=True,
                        optional=("sequences", "F(2)", "max", "E[rho]"))  # fmt: skip
    groups = grouping.groups
    if len(groups) > _ROWS:
        groups = tuple(sorted(groups, key=lambda group: -group.k3.estimate)[:_ROWS])
    for group in groups:
        values = [group.values[name] for name in ("mean_abs_delta", "max_abs_delta", "mean_ratio", "f2")]
        table.add_row(
            group.name, str(group.tokens), str(group.sequences), number(group.k3.estimate), bounds(group.k3),
            *map(number, values),
        )  # fmt: skip
    notes = []
    if len(grouping.groups) > _ROWS:
        notes.append(f"the {_ROWS} of {len(grouping.groups)} groups with the greatest k3; --json has all")
    if grouping.unknown:
        notes.append(f"the log does not say for {counted(grouping.unknown, 'token')}")
    return Group(table, *(Text(note, style="dim") for note in notes))


def _outliers(report: LogReport) -> RenderableType:
    table = plain_table("tokens", "mean |delta|", "k3", "id", names="where")
    for outlier in report.outliers:
        table.add_row(
            str(outlier.tokens), number(outlier.mean_abs_delta), number(outlier.k3), outlier.id, outlier.where
        )
    return table


def number(value: float) -> str:
    """Four digits, more near 1, where ratios lie; the word nan, inf or -inf."""
    return f"{value:.5f}" if 0.9 < value < 1.1 else f"{value:.4g}"


def _one_sided(value: Interval) -> bool:
    """Whether the data bound it on one side only."""
    return math.isinf(value.low) != math.isinf(value.high)


def bounds(value: Interval) -> str:
    """`0.0012 to 0.0019`, `at most 0.99939` of what is bounded on that side only; empty of what has no interval."""
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
