"""A metric at each step of a log, with the sequences that carry it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moeparity.metrics.accumulate import Accumulator
from moeparity.metrics.declaration import Metric

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
