"""A metric at each step of a log, with the sequences that carry it, and what it says in numbers and in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moeparity.errors import counted
from moeparity.logs.series.statistics import Trend, ema, spikes, trend
from moeparity.metrics.accumulate import Accumulator
from moeparity.metrics.declaration import Metric
from moeparity.output.json import plain

_CARRIERS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrier:
    """A sequence, and its share of the step's sum of the metric (of the sum of its absolute values)."""

    id: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The metric at one step. carriers: at most three sequences, greatest share first; none for what is no mean."""

    step: int
    value: float
    tokens: int
    sequences: int
    carriers: tuple[Carrier, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A metric over steps, in order of steps. alarm: the published bound above which it raises an alarm, if any."""

    metric: str
    unit: str
    points: tuple[Point, ...]
    alarm: float | None = None

    @property
    def steps(self) -> list[int]:
        """The steps, increasing; they need not follow each other."""
        return [point.step for point in self.points]

    @property
    def values(self) -> list[float]:
        """The metric at each step; NaN or infinite where it was."""
        return [point.value for point in self.points]


def of_steps(metric: Metric, steps: Mapping[int, Accumulator]) -> Series:
    """The series of a metric that accumulators, one for each step, hold."""
    points = tuple(_point(metric, step, totals) for step, totals in sorted(steps.items()) if totals.tokens)
    return Series(metric=metric.name, unit=metric.unit, points=points, alarm=metric.alarm_above)


def _point(metric: Metric, step: int, totals: Accumulator) -> Point:
    return Point(
        step=step,
        value=totals.estimate(metric),
        tokens=totals.tokens,
        sequences=totals.counts.numel(),
        carriers=_carriers(metric, totals),
    )


def _carriers(metric: Metric, totals: Accumulator) -> tuple[Carrier, ...]:
    if not metric.reduce.has_interval or metric.name in totals.missing:
        return ()
    sizes = totals.per_sequence(metric)[0].abs()
    total = float(sizes.sum())
    if not 0 < total < float("inf"):
        return ()
    worst = sizes.argsort(descending=True, stable=True)[:_CARRIERS].tolist()
    return tuple(Carrier(id=totals.ids[row], share=float(sizes[row]) / total) for row in worst)


SIGNIFICANT = 0.01
_MOST_SPIKES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeAt:
    """A spike, with its point. distance: in robust standard deviations of the residuals from the running median."""

    point: Point
    distance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A series with its moving average, trend and spikes; tau is the average's time, in steps."""

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

    def to_json(self) -> dict[str, Any]:
        """Plain data; numbers that are not finite become strings."""
        data: dict[str, Any] = plain(self)
        return data


def summarise(series: Series, *, tau: float = 20.0) -> Summary:
    """The series with its moving average over about `tau` steps, its trend and its spikes."""
    outliers = spikes(series.values)
    return Summary(
        series=series,
        tau=tau,
        smoothed=tuple(ema(series.steps, series.values, tau)),
        trend=trend(series.steps, series.values),
        spikes=tuple(SpikeAt(point=series.points[spike.index], distance=spike.distance) for spike in outliers),
    )


def _spike_line(spike: SpikeAt) -> str:
    carriers = ", ".join(f"{carrier.id} {100 * carrier.share:.0f}%" for carrier in spike.point.carriers)
    line = f"  step {spike.point.step}: {spike.point.value:.3g}, {spike.distance:.1f} deviations"
    return f"{line}; carried by {carriers}" if carriers else line
