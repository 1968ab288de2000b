"""The JSON Schemas of all files that commands write, by the names that `moeparity show schema` takes."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from moeparity.output.json_schema import json_schema

Schema = dict[str, Any]


class FileKind(StrEnum):
    """The kinds of files: first those that are read, then those that are written."""

    graph = "graph"
    profile = "profile"
    recipe = "recipe"
    log = "log"
    kernel = "kernel"
    fault = "fault"
    map = "map"
    layout = "layout"
    plans = "plans"
    report = "report"
    sweep = "sweep"
    ablation = "ablation"
    variance = "variance"
    flips = "flips"
    mine = "mine"
    metrics = "metrics"
    repeats = "repeats"
    engines = "engines"
    launch = "launch"
    fidelity = "fidelity"
    explain = "explain"
    baseline = "baseline"
    diff = "diff"
    ranks = "ranks"
    weights = "weights"
    examination = "examination"
    contract = "contract"


def report_schema(name: str) -> Schema:
    """The JSON Schema of one kind of report. Raises KeyError for a name that is not in `REPORTS`."""
    return REPORTS[name]()


def _report() -> Schema:
    from moeparity.bisection import report

    return json_schema(report.Report, report.SCHEMA)


def _sweep() -> Schema:
    from moeparity.bisection.sweep import report

    return json_schema(report.written(), report.SCHEMA)


def _ablation() -> Schema:
    from moeparity.bisection.ablation import report

    return json_schema(report.Ablation, report.SCHEMA)


def _variance() -> Schema:
    from moeparity.bisection.variance import report

    return json_schema(report.VarianceReport, report.SCHEMA)


def _flips() -> Schema:
    from moeparity.bisection.flips import run

    return json_schema(run.Flipped, run.SCHEMA)


def _mine() -> Schema:
    from moeparity.bisection.mine import report

    return json_schema(report.Mined, report.SCHEMA)


def _metrics() -> Schema:
    from moeparity.logs import report

    return json_schema(report.LogReport, report.SCHEMA)


def _repeats() -> Schema:
    from moeparity.logs import repeats

    return json_schema(repeats.RepeatedRuns, repeats.SCHEMA)


def _engines() -> Schema:
    from moeparity.profiles import report

    return json_schema(report.EnginesDocument, report.SCHEMA)


def _launch() -> Schema:
    from moeparity.profiles.launch import report

    return json_schema(report.LaunchDocument, report.SCHEMA)


def _fidelity() -> Schema:
    from moeparity.profiles import fidelity

    return json_schema(fidelity.FidelityDocument, fidelity.SCHEMA)


def _diff() -> Schema:
    from moeparity.evidence.diff import report

    return json_schema(report.DiffReport, report.SCHEMA)


def _ranks() -> Schema:
    from moeparity.ranks import report

    return json_schema(report.JobReport, report.SCHEMA)


def _weights() -> Schema:
    from moeparity.evidence.weights import report

    return json_schema(report.WeightsReport, report.SCHEMA)


def _examination() -> Schema:
    from moeparity.doctor import report

    return json_schema(report.Examination, report.SCHEMA)


def _contract() -> Schema:
    from moeparity.ranks import contract

    return json_schema(contract.Contract, contract.SCHEMA)


def _explain() -> Schema:
    from moeparity.evidence.explain import report

    return json_schema(report.Explained, report.SCHEMA)


def _baseline() -> Schema:
    from moeparity.check.baseline import lock

    return lock.json_schema()


REPORTS: dict[str, Callable[[], Schema]] = {
    "report": _report,
    "sweep": _sweep,
    "ablation": _ablation,
    "variance": _variance,
    "flips": _flips,
    "mine": _mine,
    "metrics": _metrics,
    "repeats": _repeats,
    "engines": _engines,
    "launch": _launch,
    "fidelity": _fidelity,
    "explain": _explain,
    "baseline": _baseline,
    "diff": _diff,
    "ranks": _ranks,
    "weights": _weights,
    "examination": _examination,
    "contract": _contract,
}
"""The schemas by name, as functions: their modules are imported on request, since some need torch."""
