"""Draws a series, or repeated runs: as a chart of characters for a terminal, or as PNG, SVG and PDF.

The chart needs no library; the files need matplotlib, from the extra `plot`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeparity.errors import MoeparityError, display_path
from moeparity.logs.series.data import Summary
from moeparity.logs.series.repeated_batch import Repeats
from moeparity.output.words import ends, printable
from moeparity.output.writing import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GUTTER = 10
FEWEST_DRAWN = 4
"""A series is drawn if it has at least this many steps."""


def chart_of(summary: Summary) -> list[str]:
    """A chart, if the series is long enough; else []."""
    return chart(summary) if len(summary.series.points) >= FEWEST_DRAWN else []


def chart(summary: Summary, *, width: int = 77, height: int = 12, log: bool = True) -> list[str]:
    """Lines of at most `width` characters: `·` is the metric's smallest and largest value in a column, `o` the average,
    `^` a spike.

    The axis is logarithmic if all values are positive and `log` is set, else linear. Columns are by step number, so a
    gap in the steps is a gap in the chart; steps that share a column are drawn as a range. [] for a series without a
    finite value.
    """
    points = [
        (point.step, point.value, smooth)
        for point, smooth in zip(summary.series.points, summary.smoothed, strict=True)
        if math.isfinite(point.value)
    ]
    if not points:
        return []
    log = log and all(value > 0 for _, value, _ in points)
    scale = math.log10 if log else float
    low = min(scale(value) for _, value, _ in points)
    high = max(scale(value) for _, value, _ in points)
    columns = max(1, width - _GUTTER - 2)
    first, last = points[0][0], points[-1][0]
    grid = [[" "] * columns for _ in range(height)]

    def row(value: float) -> int:
        return round((height - 1) * (1 - (scale(value) - low) / (high - low))) if high > low else height // 2

    def column(step: int) -> int:
        return round((columns - 1) * (step - first) / (last - first)) if last > first else 0

    for step, value, _ in points:
        grid[row(value)][column(step)] = "·"
    for step, _, smooth in points:
        grid[row(smooth)][column(step)] = "o"
    for spike in summary.spikes:
        if math.isfinite(spike.point.value):
            grid[row(spike.point.value)][column(spike.point.step)] = "^"
    title = f"{summary.series.metric}{', log axis' if log else ''}   · value  o average  ^ spike"
    ends = f"{first}{last:>{max(1, columns - len(str(first)))}}" if last > first else str(first)
    bottom = f"{'step':>{_GUTTER}} +{'-' * columns}"
    return [title, *_labelled(grid, low, high, log=log), bottom, f"{'':>{_GUTTER}}  {ends}"]


def _labelled(grid: list[list[str]], low: float, high: float, *, log: bool) -> list[str]:
    """The rows of a chart with its axis, which has a number at the top, in the middle and at the bottom."""
    last = len(grid) - 1
    labels = {0: high, last: low, last // 2: high - (high - low) * (last // 2) / last}
    numbers = {index: f"{10**value if log else value:.3g}" for index, value in labels.items()}
    return [f"{numbers.get(index, ''):>{_GUTTER}} |{''.join(cells).rstrip()}" for index, cells in enumerate(grid)]


ENDINGS = (".png", ".svg", ".pdf")
# If values span less than this factor, powers of ten alone would be too few ticks.
_DECADE = 10
_SEQUENCES = 10
_LONGEST_NAME = 60
# In inches.
_WIDTH, _PANEL, _ROW = 9.0, 4.0, 0.35


def save_series(summaries: list[Summary], path: Path) -> None:
    """One panel for each summary: values, moving average, spikes, the published alarm; a log axis if values allow it.

    Raises MoeparityError without matplotlib, for another file ending, or for a series without a finite value.
    """
    figure = _figure(path, _PANEL * len(summaries))
    for summary, axes in zip(summaries, figure.subplots(len(summaries), 1, squeeze=False)[:, 0], strict=True):
        _panel(summary, axes)
    _write(figure, path)


def save_repeats(repeats: Repeats, path: Path) -> None:
    """A dot for each run, the median as a line, and a row of dots for each sequence that spikes in some runs.

    Raises as `save_series`.
    """
    unsteady = repeats.unsteady[:_SEQUENCES]
    heights = [1.2] + [1 + _ROW * len(unsteady)] * bool(unsteady)
    figure = _figure(path, sum(heights))
    panels = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    _rows(panels[0], [(repeats.metric, repeats.values)])
    panels[0].axvline(repeats.median, color="tab:orange", linewidth=1, label=f"median {repeats.median:.3g}")
    panels[0].legend(loc="best", frameon=False)
    panels[0].set_title(f"{repeats.metric} of one batch, {len(repeats.values)} runs", loc="left")
    if unsteady:
        _rows(panels[1], [(sequence.id, sequence.values) for sequence in unsteady])
        panels[1].set_title("sequences that spike in some runs", loc="left")
    _write(figure, path)


def refuse_unplottable(path: Path) -> None:
    """Raises MoeparityError if no figure could be written: for another file ending, or without matplotlib."""
    if path.suffix not in ENDINGS:
        raise MoeparityError(
            f"{display_path(path)}: a picture ends in one of {', '.join(ENDINGS)}; given {path.suffix!r}."
        )
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise MoeparityError(
            f"{display_path(path)}: pictures need matplotlib; pip install 'moeparity[plot]'. A chart in the terminal "
            "needs nothing."
        ) from None


def _figure(path: Path, height: float) -> Figure:
    refuse_unplottable(path)
    from matplotlib.figure import Figure

    return Figure(figsize=(_WIDTH, height), layout="constrained")


def _panel(summary: Summary, axes: Any) -> None:
    series = summary.series
    if not any(math.isfinite(value) for value in series.values):
        raise MoeparityError(f"{series.metric}: no finite value to draw.")
    finite = [value for value in series.values if math.isfinite(value)]
    axes.plot(series.steps, series.values, ".", color="tab:gray", markersize=3, label="per step")
    axes.plot(series.steps, summary.smoothed, color="tab:blue", label=f"average, tau {summary.tau:g} steps")
    spikes = [spike.point for spike in summary.spikes if math.isfinite(spike.point.value)]
    if spikes:
        axes.plot(
            [p.step for p in spikes], [p.value for p in spikes], "^", color="tab:red", markersize=6, label="spike"
        )
    if series.alarm is not None and series.alarm < 3 * max(finite):
        axes.axhline(series.alarm, color="tab:orange", linewidth=1, linestyle="--", label=f"alarm {series.alarm:g}")
    if min(finite) > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        if max(finite) < _DECADE * min(finite):
            axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_xlabel("step")
    axes.set_ylabel(f"{series.metric} ({series.unit})" if series.unit not in {"", "1"} else series.metric)
    axes.legend(loc="best", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _rows(axes: Any, rows: list[tuple[str, tuple[float, ...]]]) -> None:
    finite = [value for _, values in rows for value in values if math.isfinite(value)]
    if not finite:
        raise MoeparityError(f"{rows[0][0]}: no finite value to draw.")
    for index, (_, values) in enumerate(rows):
        axes.plot(values, [index] * len(values), "o", color="tab:blue", alpha=0.5)
    if min(finite) > 0:
        axes.set_xscale("log")
    # Names are shown literally, not as formulas, whatever the user's matplotlib settings are.
    axes.set_yticks(range(len(rows)), [_label(name) for name, _ in rows], parse_math=False, usetex=False)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.spines[["top", "right"]].set_visible(False)


def _label(name: str) -> str:
    """A name from a file as one short line, of characters that a figure can have."""
    return ends(printable(name).replace("\n", "\\n").replace("\t", "\\t"), _LONGEST_NAME)


def _write(figure: Figure, path: Path) -> None:
    from matplotlib import rc_context

    # Equal numbers give equal files: no date, no random ids.
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix)
    with rc_context({"svg.hashsalt": "moeparity"}):
        write_whole(path, lambda temporary: figure.savefig(temporary, dpi=150, metadata=metadata))
