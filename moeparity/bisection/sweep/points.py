"""The points of a sweep as pieces of work, computed in turn or by workers, in the order of their values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moeparity.bisection.measures import codec
from moeparity.bisection.options import Options
from moeparity.bisection.pipeline import bisected, ready
from moeparity.bisection.report import Report
from moeparity.bisection.runs.folder import POINT, RunFolder
from moeparity.bisection.study import Study
from moeparity.bisection.sweep.report import Point
from moeparity.bisection.workers.crew import Crew, Piece, computed
from moeparity.bisection.workers.message import TASKS, PointTask, job_of, packed
from moeparity.errors import CheckpointError, DeviceError, MoeparityError, RunError
from moeparity.inputs.model import OpenedOnce
from moeparity.plan.spec.overrides import Override
from moeparity.progress import Callback, Progress

_OF_ALL = (CheckpointError, DeviceError, RunError)
"""Errors that stop every point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """All combinations of values, and what their runs share."""

    recipe: str | Path
    combinations: Sequence[tuple[Override, ...]]
    device: str
    allow_code: bool
    memory_limit: float | None
    folder: RunFolder | None

    def run(self, crew: Crew | None, progress: Callback | None) -> tuple[Point, ...]:
        """Every point, in the order of the combinations. Raises MoeparityError if something stops all of them."""
        outcomes: dict[int, Report | MoeparityError] = {}
        pieces = self._pieces(outcomes, progress)
        for piece, outcome in computed(pieces, crew, "point", len(self.combinations), progress):
            if isinstance(outcome, _OF_ALL):
                raise outcome
            outcomes[piece.place] = outcome
        refusals = [outcome for outcome in outcomes.values() if isinstance(outcome, MoeparityError)]
        if len(refusals) == len(outcomes) and len({str(error) for error in refusals}) == 1:
            raise refusals[0]
        return tuple(_point(overrides, outcomes[place]) for place, overrides in enumerate(self.combinations))

    def _pieces(self, outcomes: dict[int, Report | MoeparityError], progress: Callback | None) -> Iterator[_PointPiece]:
        """The points, each prepared when it is asked for. One that is refused before that is put into `outcomes`."""
        opener = OpenedOnce()
        for place, overrides in enumerate(self.combinations):
            try:
                yield self._ready(place, overrides, opener, progress)
            except _OF_ALL:
                raise
            except MoeparityError as error:
                outcomes[place] = error

    def _ready(
        self, place: int, overrides: tuple[Override, ...], opener: OpenedOnce, progress: Callback | None
    ) -> _PointPiece:
        """A point with its study, admitted to the run. Raises MoeparityError."""
        name = f"point {place + 1} of {len(self.combinations)}"
        numbered = None if progress is None else _Numbered(progress, name)
        options = Options(
            overrides=overrides, attribution=False, allow_code=self.allow_code, memory_limit=self.memory_limit
        )
        study = ready(self.recipe, device=self.device, options=options, progress=numbered, opener=opener)
        if self.folder is not None:
            self.folder.admit_point(study, ", ".join(f"{o.name}={o.value}" for o in overrides), numbered)
        of_reports = codec(study.model.graph, Report)
        return _PointPiece(
            name=name,
            place=place,
            key=POINT,
            store=None if self.folder is None else self.folder.pieces(of_reports),
            codec=of_reports,
            study=study,
            options=options,
            folder=self.folder,
            progress=numbered,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _PointPiece(Piece):
    """One point: its study, and the folder in which the sweep is kept."""

    study: Study
    options: Options
    folder: RunFolder | None
    progress: Callback | None

    def stored(self) -> Report | None:
        """The report that an earlier run kept. Raises RunError if a finished run has none."""
        return None if self.folder is None or self.store is None else self.folder.stored(self.store, self.key)

    def compute(self) -> Report:
        """The report, computed here."""
        return bisected(self.study, progress=self.progress)

    def message(self) -> bytes:
        """The task for a worker."""
        return packed(TASKS, PointTask(job=job_of(self.study, self.options)))


def _point(overrides: tuple[Override, ...], outcome: Report | MoeparityError) -> Point:
    values: Mapping[str, Any] = {override.name: override.value for override in overrides}
    if isinstance(outcome, Report):
        return Point(values=values, report=outcome)
    return Point(values=values, report=None, error=str(outcome))


@dataclass(frozen=True, slots=True)
class _Numbered:
    """Adds to a progress report which point it is about."""

    progress: Callback
    point: str

    def __call__(self, report: Progress) -> None:
        """Pass the report on."""
        self.progress(replace(report, at=f"{self.point}, {report.at}"))
