"""A recipe run, or logs measured, and held to what they expect of the report."""

from __future__ import annotations

import time
from pathlib import Path

from moeparity.bisection.expectations import Checked, Finding, refuse_unknown
from moeparity.bisection.outline import outline_recipe
from moeparity.bisection.report import Report
from moeparity.errors import MoeparityError, Where, display_path
from moeparity.logs.expectations import log_findings
from moeparity.logs.report import LogReport
from moeparity.plan.spec import files
from moeparity.progress import Callback


def check(
    recipe: str | Path,
    *,
    device: str = "auto",
    allow_code: bool = False,
    memory_limit: float | None = None,
    progress: Callback | None = None,
) -> Checked:
    """Run a recipe as `moeparity.bisect` does, or measure the logs of a `kind: log`, and hold the report to `expect:`.

    What can be wrong with the expectations is found before a run, which alone imports torch; only the names of toggles
    that are split during the run (`split:`) are looked at after it. A user's mistake is part of the result, so that it
    stops no other recipe; any other exception is raised.
    """
    path, started = Path(recipe), time.perf_counter()
    report: Report | LogReport | None = None
    try:
        if files.is_log_check(path):
            report, findings = _logs(path, progress)
        else:
            report, findings = _recipe(path, device, allow_code=allow_code, memory=memory_limit, progress=progress)
    except MoeparityError as error:
        return Checked(
            recipe=display_path(path),
            findings=(),
            error=str(error),
            report=None,
            seconds=time.perf_counter() - started,
        )
    return Checked(
        recipe=display_path(path),
        findings=findings,
        error=None,
        report=report,
        seconds=time.perf_counter() - started,
    )


def _recipe(
    path: Path, device: str, *, allow_code: bool, memory: float | None, progress: Callback | None
) -> tuple[Report, tuple[Finding, ...]]:
    planned = outline_recipe(path).expectations
    from moeparity.bisection.pipeline import bisect
    from moeparity.bisection.prepare import Options

    options = Options(allow_code=allow_code, memory_limit=memory)
    report = bisect(path, device=device, options=options, progress=progress)
    refuse_unknown(files.read_recipe(path).expect, (toggle.name for toggle in report.toggles), Where(path))
    judged = ((expectation.says, *expectation.judge(report)) for expectation in planned)
    return report, tuple(Finding(expectation=says, status=status, found=found) for says, status, found in judged)


def _logs(path: Path, progress: Callback | None) -> tuple[LogReport, tuple[Finding, ...]]:
    from moeparity.logs.files import measure_check

    read = files.read_log_check(path)
    report = measure_check(read, Where(path), progress=progress)
    return report, log_findings(read.expect, report)
