"""A metric at each step of a log, with the sequences that carry it, its moving average, trend and spikes."""

from __future__ import annotations

from collections.abc import Mapping

from moeparity.logs.series.data import Carrier, Point, Series, SpikeAt, Summary
from moeparity.logs.series.statistics import ema, spikes, trend
from moeparity.metrics.accumulate import Accumulator
from moeparity.metrics.declaration import Metric

_CARRIERS = 3


def of_steps(metric: Metric, steps: Mapping[int, Accumulator]) -> Series:
    """The series of a metric; `steps` has an accumulator for each step."""
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
