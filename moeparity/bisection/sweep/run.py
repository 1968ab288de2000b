"""A recipe run again and again with some of its values replaced: every combination of what `over` lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeparity.bisection.sweep.report import Point, Sweep
from moeparity.errors import CheckpointError, DeviceError, MoeparityError, RunError, display_path
from moeparity.plan.spec.overrides import Override, axes
from moeparity.progress import Callback, Progress

if TYPE_CHECKING:
    from moeparity.bisection.report import Report
    from moeparity.inputs.model import Model

Run = Callable[[tuple[Override, ...], Callback | None], "Report"]


def sweep(
    recipe: str | Path,
    over: Sequence[str],
    *,
    device: str = "auto",
    allow_code: bool = False,
    memory_limit: float | None = None,
    progress: Callback | None = None,
    run: str | Path | None = None,
) -> Sweep:
    """Run a recipe at every point of `over`, such as `placement.tensor=1,2,4`; several give all their combinations.

    A key is a field of a side (`profile`, `dtype`, `micro_batch`, `placement.tensor`) or an address as in `set:`, of
    the candidate; `reference.` or `both.` before it says otherwise. Each point is what `moeparity.bisect` does without
    attribution: both sides and nothing else, on one opened checkpoint. A point that cannot run keeps its error and
    stops no other. `run` is a folder to keep them: a sweep that was killed goes on behind its last point. Raises
    MoeparityError for a key or a value that no recipe may hold, a checkpoint, a device or a folder that cannot be used,
    and for what every point is refused for alike.
    """
    from moeparity.bisection.pipeline import bisected, ready
    from moeparity.bisection.prepare import Options
    from moeparity.bisection.resume.codec import Codec, classes_of
    from moeparity.bisection.runs.folder import open_run

    value_axes = axes(over)
    opener = _Opener()

    with open_run(run, "sweep", recipe, {"device": device, "over": list(over)}) as folder:

        def run_point(overrides: tuple[Override, ...], progress: Callback | None) -> Report:
            options = Options(overrides=overrides, attribution=False, allow_code=allow_code, memory_limit=memory_limit)
            plan = ready(recipe, device=device, options=options, progress=progress, opener=opener)
            if folder is not None:
                folder.admit_point(plan, ", ".join(f"{o.name}={o.value}" for o in overrides), progress)
            return bisected(plan, folder, progress)

        def make() -> Sweep:
            return Sweep(
                recipe=display_path(Path(recipe)),
                keys=tuple(axis[0].name for axis in value_axes),
                points=_points(list(product(*value_axes)), run_point, progress),
            )

        table = make()
        if folder is not None:
            folder.once(folder.together(Codec(classes_of(Sweep))), "sweep", lambda: table)
            folder.finish(table)
    return table


class _Opener:
    """Opens the checkpoint for the first point that gets as far, and hands it to the others."""

    def __init__(self) -> None:
        self.model: Model | None = None

    def __call__(self, folder: Path, **arguments: Any) -> Model:
        """What `open_model` gives."""
        from moeparity.inputs.model import open_model

        if self.model is None:
            self.model = open_model(folder, **arguments)
        return self.model


def _points(combinations: list[tuple[Override, ...]], run: Run, progress: Callback | None) -> tuple[Point, ...]:
    points, refusals = [], []
    for number, overrides in enumerate(combinations, 1):
        values = {override.name: override.value for override in overrides}
        callback = None if progress is None else _Numbered(progress, f"point {number} of {len(combinations)}")
        try:
            points.append(Point(values=values, report=run(overrides, callback)))
        except (CheckpointError, DeviceError, RunError):
            raise
        except MoeparityError as error:
            refusals.append(error)
            points.append(Point(values=values, report=None, error=str(error)))
    if len(refusals) == len(points) and len({str(error) for error in refusals}) == 1:
        raise refusals[0]
    return tuple(points)


@dataclass(frozen=True, slots=True)
class _Numbered:
    """Says which point a report of progress belongs to."""

    progress: Callback
    point: str

    def __call__(self, report: Progress) -> None:
        """Hand the report on."""
        self.progress(replace(report, at=f"{self.point}, {report.at}"))
