"""Repeated runs of one batch: spikes that do not recur, as a distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch

from moeparity.errors import LogError
from moeparity.logs.series.statistics import spikes
from moeparity.metrics.accumulate import Accumulator
from moeparity.metrics.declaration import Metric

TIMES = 2.0
"""A sequence spikes in a run if its sum exceeds this many times its median over the runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsteady:
    """A sequence that spikes in some runs. values: its mean per token in each run; spikes: in how many runs it
    spikes.
    """

    id: str
    values: tuple[float, ...]
    spikes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """A metric of one batch in several runs.

    values: by run, in the given order. spiking: the runs that stand out: with 8 runs or more, those above the median by
    the rule of `spikes`; with fewer, those above `TIMES` the median (of the excess over 1, for a metric that is 1 at
    parity).
    alarms: how many runs raise the published alarm; None if there is none. unsteady: sequences that spike in some runs,
    the largest first.
    """

    metric: str
    names: tuple[str, ...]
    values: tuple[float, ...]
    least: float
    median: float
    greatest: float
    spiking: tuple[int, ...]
    alarms: int | None
    unsteady: tuple[Unsteady, ...]

    def lines(self) -> list[str]:
        """In words."""
        count = len(self.values)
        text = [
            f"{self.metric} of one batch in {count} runs: least {self.least:.3g}, median {self.median:.3g}, greatest "
            f"{self.greatest:.3g}; {len(self.spiking)} of {count} runs with a spike"
            + (f": {', '.join(self.names[index] for index in self.spiking)}" if self.spiking else "")
        ]
        if self.alarms is not None:
            text.append(f"{self.alarms} of {count} runs above the published alarm")
        text += [
            f"  {sequence.id}: {min(sequence.values):.3g} to {max(sequence.values):.3g} per token, a spike in "
            f"{sequence.spikes} of {count} runs"
            for sequence in self.unsteady[:5]
        ]
        return text


def repeats(metric: Metric, names: Sequence[str], runs: Sequence[Accumulator]) -> Repeats:
    """The distribution of a metric over runs of the same sequences; `names` are the runs' names in messages.

    Raises LogError for fewer than 2 runs, or runs whose sequences or token counts differ; ValueError for a metric that
    is not a mean.
    """
    if len(runs) < 2:
        raise LogError(f"{', '.join(names)}: one run; at least 2 runs of one batch are expected to compare them.")
    order = _row_orders(names, runs)
    values = [run.estimate(metric) for run in runs]
    middle, offset = median(values), metric.reduce.offset
    robust = {spike.index for spike in spikes(values, window=2 * len(values) + 1)}
    spiking = tuple(
        index
        for index, value in enumerate(values)
        if index in robust or (len(values) < 8 and 0 < TIMES * (middle - offset) < value - offset)
    )
    return Repeats(
        metric=metric.name,
        names=tuple(names),
        values=tuple(values),
        least=min(values),
        median=middle,
        greatest=max(values),
        spiking=spiking,
        alarms=None if metric.alarm_above is None else sum(metric.alarms(value) for value in values),
        unsteady=_unsteady(metric, runs, order),
    )


def _row_orders(names: Sequence[str], runs: Sequence[Accumulator]) -> list[torch.Tensor]:
    """For each run, the rows in which it has the sequences of the first run."""
    first = runs[0]
    orders = []
    for name, run in zip(names, runs, strict=True):
        rows = {id: row for row, id in enumerate(run.ids)}
        if rows.keys() != set(first.ids) or len(run.ids) != len(first.ids):
            odd_id = next(iter(sorted(rows.keys() ^ set(first.ids))), "one twice")
            raise LogError(
                f"{name}: other sequences than {names[0]} ({odd_id}); runs of one batch are expected to hold the same "
                "ids."
            )
        order = torch.tensor([rows[id] for id in first.ids])
        if not torch.equal(run.counts[order], first.counts):
            raise LogError(
                f"{name}: sequences of other lengths than in {names[0]}; runs that score the same tokens are expected. "
                "Give the trainer the same rollouts each time."
            )
        orders.append(order)
    return orders


def _unsteady(metric: Metric, runs: Sequence[Accumulator], order: list[torch.Tensor]) -> tuple[Unsteady, ...]:
    columns = []
    for run, rows in zip(runs, order, strict=True):
        sums, counts = run.per_sequence(metric)
        columns.append((sums / counts)[rows])
    table = torch.stack(columns, 1)
    middle = table.median(1, keepdim=True).values
    spiking = table > TIMES * middle.clamp(min=0)
    reach = torch.where(spiking.any(1), table.amax(1) - middle[:, 0], -math.inf)
    places = [row for row in reach.argsort(descending=True, stable=True).tolist() if reach[row] > 0]
    return tuple(
        Unsteady(id=runs[0].ids[row], values=tuple(table[row].tolist()), spikes=int(spiking[row].sum()))
        for row in places
    )
