"""A log as pictures: its metric in each sequence, by place in the sequence, and over steps; or of several runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from moeparity.logs.repeats import RepeatedRuns
from moeparity.logs.report import MOST_DRAWN, LogPlots, LogReport
from moeparity.logs.series.repeated_batch import Repeats
from moeparity.logs.text import bounds, number
from moeparity.output.html.page import Block, PageSection
from moeparity.output.html.series import Line, Series, picture


def pictures(report: LogReport) -> PageSection | None:
    """What the report was asked to have drawn; None where nothing was."""
    blocks = [] if report.plots is None else [*_sequences(report, report.plots), *_positions(report.plots)]
    blocks += [_steps(summary) for summary in report.series]
    return _section(blocks)


def pictures_of_runs(runs: RepeatedRuns) -> PageSection | None:
    """Each metric of the same batch, by run."""
    return _section([_of_runs(repeats) for repeats in runs.metrics])


def _section(blocks: list[Block]) -> PageSection | None:
    title = "Where does it come from?"
    return PageSection(key="where", short="Where", title=title, blocks=blocks) if blocks else None


def _sequences(report: LogReport, plots: LogPlots) -> Iterator[Block]:
    if not plots.sequences:
        return
    line = Line(label=f"{plots.metric} of a sequence", values=[each.value for each in plots.sequences], look="points")
    verdict = report.verdict
    series = Series(
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
    )
    left_out = report.sequences - len(plots.sequences)
    note = f"The {MOST_DRAWN} with the greatest mean; {left_out} others are not drawn." if left_out else ""
    yield picture("By sequence", series, note)


def _positions(plots: LogPlots) -> Iterator[Block]:
    groups = plots.positions.groups
    if not groups:
        return
    line = Line(
        label="k3, with its 95% interval",
        values=[group.k3.estimate for group in groups],
        low=[group.k3.low for group in groups],
        high=[group.k3.high for group in groups],
    )
    series = Series(
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
    yield picture("By position", series)


def _steps(summary: Mapping[str, Any]) -> Block:
    """A series as `Summary.to_json` gives it."""
    of, smoothed = summary["series"], [_number(value) for value in summary["smoothed"]]
    metric, alarm, points = of["metric"], of["alarm"], of["points"]
    steps, values = [point["step"] for point in points], [_number(point["value"]) for point in points]
    spikes = {spike["point"]["step"] for spike in summary["spikes"]}
    spiking = [value if step in spikes else math.nan for step, value in zip(steps, values, strict=True)]
    lines = [
        Line(label=f"{metric} of a step", values=values, look="points"),
        Line(label=f"moving average, tau {summary['tau']:g} steps", values=smoothed),
        Line(label="spike", values=spiking, look="spikes"),
    ]
    series = Series(
        name=f"steps-{metric}",
        label=f"{metric} over steps",
        x=steps,
        x_label="step",
        y_label=_labelled(metric, of["unit"]),
        lines=lines,
        bound=None if alarm is None else (f"published alarm {alarm:g}", alarm),
        words=[
            [
                f"step {point['step']}",
                f"{metric} {number(value)}" + ", a spike" * (point["step"] in spikes),
                f"average {number(average)}",
                *(f"{carrier['id']} carries {carrier['share']:.0%}" for carrier in point["carriers"]),
            ]
            for point, value, average in zip(points, values, smoothed, strict=True)
        ],
    )
    return picture(f"{metric} over steps", series)


def _of_runs(repeats: Repeats) -> Block:
    spiking = set(repeats.spiking)
    series = Series(
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
    return picture(f"{repeats.metric} by run", series)


def _labelled(metric: str, unit: str) -> str:
    return metric if unit in {"", "1"} else f"{metric}, {unit}"


def _number(value: float | str) -> float:
    """A number of strict JSON, where what is not finite is a word."""
    return float(value)
