"""The schema of a file of metrics (`kind: metrics`, in graphs/metrics), and its declarations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from moeparity.documents.checked import read
from moeparity.documents.model import Model
from moeparity.errors import SpecError, did_you_mean, listed
from moeparity.metrics.declaration import Definition, Metric, Source


class MetricEntry(Definition):
    """A metric. source: the name of one of the file's `sources`; none is named where there is a single one."""

    source: str | None = None


class MetricsFile(Model):
    """`kind: metrics`: the metrics of a set, by their names without the set's: those of a framework, or `common`."""

    kind: Literal["metrics"]
    set: str
    sources: Annotated[dict[str, Source], Field(min_length=1)]
    metrics: dict[str, MetricEntry]


def declared(path: Path) -> Iterator[Metric]:
    """The metrics of a file. Raises SpecError for a mistake in it."""
    file = read(path, MetricsFile)
    for short_name, entry in file.metrics.items():
        name = short_name if file.set == "common" else f"{file.set}/{short_name}"
        yield Metric(**{**dict(entry), "name": name, "source": _source(file, entry)})


def _source(file: MetricsFile, entry: MetricEntry) -> Source:
    name = next(iter(file.sources)) if entry.source is None and len(file.sources) == 1 else entry.source
    if name not in file.sources:
        raise SpecError(
            f"{entry.where_in_file('source')}: source {name!r} is none of the file's `sources`; expected one of "
            f"{listed(file.sources)}.{did_you_mean(str(name), file.sources)}"
        )
    return file.sources[name]
