"""The JSON Schema of every report that a command writes with `--json`, by the name that `moeparity schema` takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moeparity.output.json_schema import json_schema


def report_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of one kind of report. Raises KeyError for a name that is not in `REPORTS`."""
    report, schema = REPORTS[name]()
    return json_schema(report, schema)


def _report() -> tuple[type, str]:
    from moeparity.bisection import report

    return report.Report, report.SCHEMA


def _sweep() -> tuple[type, str]:
    from moeparity.bisection.sweep import report

    return report.written(), report.SCHEMA


def _variance() -> tuple[type, str]:
    from moeparity.bisection.variance import report

    return report.VarianceReport, report.SCHEMA


def _flips() -> tuple[type, str]:
    from moeparity.bisection.flips import run

    return run.Flipped, run.SCHEMA


def _mine() -> tuple[type, str]:
    from moeparity.bisection.mine import report

    return report.Mined, report.SCHEMA


def _metrics() -> tuple[type, str]:
    from moeparity.logs import report

    return report.LogReport, report.SCHEMA


def _repeats() -> tuple[type, str]:
    from moeparity.logs import repeats

    return repeats.RepeatedRuns, repeats.SCHEMA


def _engines() -> tuple[type, str]:
    from moeparity.profiles import report

    return report.EnginesDocument, report.SCHEMA


def _launch() -> tuple[type, str]:
    from moeparity.profiles.launch import report

    return report.LaunchDocument, report.SCHEMA


REPORTS: dict[str, Callable[[], tuple[type, str]]] = {
    "report": _report,
    "sweep": _sweep,
    "variance": _variance,
    "flips": _flips,
    "mine": _mine,
    "metrics": _metrics,
    "repeats": _repeats,
    "engines": _engines,
    "launch": _launch,
}
"""By name: the dataclass that is written, and its schema's name. Imported when asked for: some need torch."""
