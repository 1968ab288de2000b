"""Compares repeated runs of one batch: how a metric varies if nothing is changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from moeparity import logs
from moeparity.errors import display_path
from moeparity.logs.chunks import Chunker
from moeparity.logs.measure import SERIES
from moeparity.logs.series.pictures import refuse_unplottable, save_repeats
from moeparity.logs.series.repeated_batch import Repeats, repeats
from moeparity.metrics.accumulate import Accumulator
from moeparity.metrics.registry import METRICS
from moeparity.output.json import to_json
from moeparity.progress import Callback, Progress

SCHEMA = "moeparity.repeats/1"
"""Schema of the JSON. The number grows if a field changes its meaning or goes; new fields may appear without that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedRuns:
    """The metrics of `SERIES` over runs of one batch."""

    metrics: tuple[Repeats, ...]

    def lines(self) -> list[str]:
        """In words."""
        return [line for repeats_ in self.metrics for line in repeats_.lines()]

    def to_json(self) -> str:
        """Strict JSON: NaN and infinities are written as the words nan, inf and -inf."""
        return to_json(SCHEMA, self)


def measure_repeats(
    paths: Sequence[Path], *, format: str | None = None, progress: Callback | None = None, plot: Path | None = None
) -> RepeatedRuns:
    """Measure runs of one batch. Each path is one run with both sides, a file or a folder; `plot`: a PNG or SVG of k3
    by run.

    Raises LogError for fewer than two runs, or runs of different sequences.
    """
    metrics = tuple(METRICS[name] for name in SERIES)
    if plot is not None:
        refuse_unplottable(plot)
    runs = []
    for number, path in enumerate(paths):
        if progress is not None:
            progress(
                Progress(step="reading", at=path.name, done=number, total=len(paths), work=number + 1, unit="runs")
            )
        run = Accumulator(metrics)
        for chunk in Chunker().chunks(logs.open([path], format=format)):
            run.add(chunk)
        runs.append(run)
    names = [display_path(path) for path in paths]
    result = RepeatedRuns(metrics=tuple(repeats(metric, names, runs) for metric in metrics))
    if plot is not None:
        save_repeats(result.metrics[0], plot)
    return result
