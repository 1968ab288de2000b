"""A series as characters: a chart for a terminal, without any library."""

from __future__ import annotations

import math

from moeparity.logs.series.summary import Summary

_GUTTER = 10


def chart(summary: Summary, *, width: int = 77, height: int = 12, log: bool = True) -> list[str]:
    """Lines of at most `width` characters: `·` the metric's least and greatest in a column, `o` the average, `^` a
    spike.

    The axis is logarithmic where all values are positive and `log` is set, else linear. Steps are spread by their
    number, so that a gap in them is a gap in the chart; steps that share a column are drawn as their range. Nothing
    for a series without a finite value.
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
    labels = {0: high, height - 1: low, (height - 1) // 2: high - (high - low) * ((height - 1) // 2) / (height - 1)}
    lines = [f"{summary.series.metric}{', log axis' if log else ''}   · value  o average  ^ spike"]
    for index, cells in enumerate(grid):
        label = f"{10 ** labels[index] if log else labels[index]:.3g}" if index in labels else ""
        lines.append(f"{label:>{_GUTTER}} |{''.join(cells).rstrip()}")
    lines.append(f"{'step':>{_GUTTER}} +{'-' * columns}")
    ends = f"{first}{last:>{max(1, columns - len(str(first)))}}" if last > first else str(first)
    return [*lines, f"{'':>{_GUTTER}}  {ends}"]
