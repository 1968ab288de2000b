"""What the seeds of a setting say together: means with intervals over seeds, growth, the distance to matched."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moeparity.metrics.interval import student

Rows = Sequence[Mapping[str, float]]
Seeds = Sequence[Rows]
"""The rows of one setting's trainings, seed by seed."""
LEVEL = 0.95
WINDOW = 10
"""Steps at the beginning and at the end that are held against each other."""


@dataclass(frozen=True, slots=True)
class Over:
    """A mean over seeds and its interval of Student's t; NaN and no bounds if a seed has no finite number."""

    mean: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """1 or -1 where the interval lies on one side of 0; else 0."""
        return (self.low > 0) - (self.high < 0)


def over(values: Sequence[float]) -> Over:
    """The mean of one number for each seed, with the interval that takes seeds for a sample. Equal ones: no width."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return Over(math.nan, -math.inf, math.inf)
    mean = statistics.fmean(values)
    reach = student((1 + LEVEL) / 2, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Over(mean, mean - reach, mean + reach)


def mean(seeds: Seeds, name: str) -> Over:
    """Of a column, over all steps."""
    return over([statistics.fmean(row[name] for row in rows) for rows in seeds])


def push(seeds: Seeds) -> Over:
    """The mean of rho - 1, rho = exp(log P_trainer - log P_record). It is 0 for any true record, whatever the
    distance; a mean of log rho below 0 is not: that is what a KL looks like.
    """
    return over([statistics.fmean(row["mean_ratio"] - 1 for row in rows) for rows in seeds])


def growth(seeds: Seeds, name: str) -> Over:
    """The log of a column's mean over the last `WINDOW` steps, less that over the first ones behind the first step."""
    return over([_log(at_end(rows, name)) - _log(mean_at_start(rows, name)) for rows in seeds])


def ratio(seeds: Seeds, others: Seeds, name: str) -> Over:
    """The log of a column's mean over all steps, less that of other trainings of the same seeds."""
    pairs = zip(seeds, others, strict=True)
    return over([_log(_mean(rows, name)) - _log(_mean(of_other, name)) for rows, of_other in pairs])


def mean_at_start(rows: Rows, name: str) -> float:
    """A column's mean over the first `WINDOW` steps behind the very first."""
    return _mean(rows[1 : WINDOW + 1], name)


def at_end(rows: Rows, name: str) -> float:
    """A column's mean over the last `WINDOW` steps."""
    return _mean(rows[-WINDOW:], name)


def beside(seeds: Seeds, matched: Seeds, name: str) -> Over:
    """The end of a column less that of the matched training of the same seed."""
    pairs = zip(seeds, matched, strict=True)
    return over([at_end(rows, name) - at_end(others, name) for rows, others in pairs])


def _mean(rows: Rows, name: str) -> float:
    return statistics.fmean(row[name] for row in rows if name in row)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else math.nan
