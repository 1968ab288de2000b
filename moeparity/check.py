"""A recipe run and held to what it expects of its report."""

from __future__ import annotations

import time
from pathlib import Path

from moeparity.errors import MoeparityError, Where, display_path
from moeparity.outline import outline_recipe
from moeparity.progress import Callback
from moeparity.report.expectations import Checked, Finding, refuse_unknown
from moeparity.spec import files


def check(
    recipe: str | Path,
    *,
    device: str = "auto",
    allow_code: bool = False,
    memory_limit: float | None = None,
    progress: Callback | None = None,
) -> Checked:
    """Run a recipe as `moeparity.bisect` does and hold the report to its `expect:`. It imports torch for the run only.

    What can be wrong with the expectations is found before the run; only the names of toggles that are split during
    the run (`split:`) are looked at after it. A user's mistake is part of the result, so that it stops no other
    recipe; any other exception is raised.
    """
    path, started = Path(recipe), time.perf_counter()
    try:
        planned = outline_recipe(path).expectations
        from moeparity.pipeline import bisect
        from moeparity.plan import Options

        options = Options(allow_code=allow_code, memory_limit=memory_limit)
        report = bisect(path, device=device, options=options, progress=progress)
        refuse_unknown(files.read_recipe(path).expect, (toggle.name for toggle in report.toggles), Where(path))
    except MoeparityError as error:
        return Checked(
            recipe=display_path(path),
            findings=(),
            error=str(error),
            report=None,
            seconds=time.perf_counter() - started,
        )
    judged = ((expectation.says, *expectation.judge(report)) for expectation in planned)
    return Checked(
        recipe=display_path(path),
        findings=tuple(Finding(expectation=says, status=status, found=found) for says, status, found in judged),
        error=None,
        report=report,
        seconds=time.perf_counter() - started,
    )
