"""`moeparity sweep`: runs a recipe at every combination of the values that `over` lists."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

from moeparity.bisection.sweep.report import Sweep
from moeparity.errors import display_path
from moeparity.plan.spec.overrides import axes
from moeparity.progress import Callback


def sweep(
    recipe: str | Path,
    over: Sequence[str],
    *,
    device: str = "auto",
    allow_code: bool = False,
    memory_limit: float | None = None,
    progress: Callback | None = None,
    run: str | Path | None = None,
    workers: str | int | None = None,
) -> Sweep:
    """Run a recipe at every point of `over`, such as `placement.tensor=1,2,4`; several keys give all combinations.

    A key is a field of a side (`profile`, `dtype`, `micro_batch`, `placement.tensor`) or an address as in `set:`. It is
    the candidate's unless `reference.` or `both.` stands before it. Each point does what `moeparity.bisect` does
    without attribution: it runs both sides and nothing else, on a checkpoint that is opened once. A point that can't
    run keeps its error and does not stop the others. run: a folder that keeps the points; a sweep that was killed goes
    on after its last point. workers: a number of processes here, `ray`, `ray:auto` or `ray:HOST:PORT`, which compute
    points; no result depends on them.

    Raises MoeparityError for a key or a value that no recipe may have, for a checkpoint, a device or a folder that
    can't be used, and if all points are refused for the same reason.
    """
    from moeparity.bisection.resume.codec import Codec, classes_of
    from moeparity.bisection.runs.folder import open_run
    from moeparity.bisection.sweep.points import Points
    from moeparity.bisection.workers.request import crew_of, wanted_workers

    value_axes, wanted = axes(over), wanted_workers(workers)
    with open_run(run, "sweep", recipe, {"device": device, "over": list(over)}) as folder:
        points = Points(
            recipe=recipe,
            combinations=list(product(*value_axes)),
            device=device,
            allow_code=allow_code,
            memory_limit=memory_limit,
            folder=folder,
        )
        with crew_of(wanted, device) as crew:
            table = Sweep(
                recipe=display_path(Path(recipe)),
                keys=tuple(axis[0].name for axis in value_axes),
                points=points.run(crew, progress),
            )
        if folder is not None:
            folder.once(folder.together(Codec(classes_of(Sweep))), "sweep", lambda: table)
            folder.finish(table)
    return table
