"""A metric over steps as data and in words: points with the sequences that carry them, trend and spikes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from moeparity.errors import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrier:
    """A sequence, and its fraction of the step's sum of the metric's absolute values."""

    id: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The metric at one step. carriers: at most three sequences, the largest share first; none if the metric is no
    mean.
    """

    step: int
    value: float
    tokens: int
    sequences: int
    carriers: tuple[Carrier, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A metric over increasing steps. alarm: the published bound above which it raises an alarm, if there is one."""

    metric: str
    unit: str
    points: tuple[Point, ...]
    alarm: float | None = None

    @property
    def steps(self) -> list[int]:
        """The steps, increasing; there may be gaps."""
        return [point.step for point in self.points]

    @property
    def values(self) -> list[float]:
        """The metric at each step; NaN or infinite where it was."""
        return [point.value for point in self.points]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """Theil-Sen slope: the median of the slopes of all pairs of points, per step.

    log: the slope is of the natural logarithm, so that exp(slope) is a factor per step. p: two-sided, of the
    Mann-Kendall test that the order is by chance, with ties and the normal approximation. The test assumes independent
    steps, which training steps are not quite, so the true p may be larger. points: number of points.
    """

    slope: float
    p: float
    points: int
    log: bool


SIGNIFICANT = 0.01
_MOST_SPIKES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeAt:
    """A spike with its point. distance: from the running median, in robust standard deviations of the residuals."""

    point: Point
    distance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A series with its moving average, trend and spikes. tau: time constant of the average, in steps."""

    series: Series
    tau: float
    smoothed: tuple[float, ...]
    trend: Trend
    spikes: tuple[SpikeAt, ...]

    def lines(self) -> list[str]:
        """In words: the range, the trend, the spikes and the sequences that carry them."""
        values = [value for value in self.series.values if math.isfinite(value)]
        if not values:
            return [f"{self.series.metric}: no finite value"]
        span = f"{self.series.steps[0]} to {self.series.steps[-1]}"
        text = [
            (
                f"{self.series.metric} over {len(self.series.points)} steps ({span}): {min(values):.3g} to "
                f"{max(values):.3g}, "
                f"moving average at the end {self.smoothed[-1]:.3g} (tau {self.tau:g} steps)"
            ),
            self._trend_line(),
        ]
        if self.series.alarm is not None:
            above = sum(value > self.series.alarm for value in values)
            text.append(f"{above} of {len(values)} steps above the published alarm {self.series.alarm:g}")
        worst = sorted(self.spikes, key=lambda spike: -spike.distance)[:_MOST_SPIKES]
        text.append(counted(len(self.spikes), "spike") + ("", ":", ", the greatest:")[min(len(worst), 2)])
        return text + [_spike_line(spike) for spike in worst]

    def _trend_line(self) -> str:
        if math.isnan(self.trend.slope):
            return "no trend from fewer than 4 steps"
        steps = self.series.steps[-1] - self.series.steps[0]
        if self.trend.log:
            change = f"a factor of {math.exp(self.trend.slope * steps):.3g} over all steps"
        else:
            change = f"{self.trend.slope * steps:+.3g} over all steps"
        p = "p < 1e-16" if self.trend.p < 1e-16 else f"p = {self.trend.p:.2g}"
        if self.trend.p > SIGNIFICANT or not self.trend.slope:
            return f"no trend (Theil-Sen: {change}; Mann-Kendall {p})"
        return f"{'rises' if self.trend.slope > 0 else 'falls'}: {change} (Theil-Sen; Mann-Kendall {p})"


def _spike_line(spike: SpikeAt) -> str:
    carriers = ", ".join(f"{carrier.id} {100 * carrier.share:.0f}%" for carrier in spike.point.carriers)
    line = f"  step {spike.point.step}: {spike.point.value:.3g}, {spike.distance:.1f} deviations"
    return f"{line}; carried by {carriers}" if carriers else line
