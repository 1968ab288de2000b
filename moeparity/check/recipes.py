"""Runs a recipe, or measures logs, and compares the report with what is expected; writes findings as JUnit XML.

CI services show test results from JUnit. There is one `testsuite` per recipe and one `testcase` per expectation. An
expectation that is not met is a `failure` of type `expectation`. An open one is a `failure` of type `inconclusive`, not
`skipped`, since viewers show skipped tests as green. A recipe that could not be checked is one testcase with an
`error`. What a lock keeps of another machine is not judged here, and `skipped`. Attributes are those in the schema of
Jenkins' xUnit plugin (junit-10.xsd).
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from moeparity.bisection.expectations import refuse_unknown
from moeparity.bisection.outline import outline_recipe
from moeparity.bisection.report import Report
from moeparity.check.baseline.baseline import Baseline, present_run, updated
from moeparity.check.baseline.lock import Entry
from moeparity.documents.checked import read
from moeparity.errors import MoeparityError, Where, display_path
from moeparity.logs.expectations import log_findings
from moeparity.logs.noise_gate import noise_bounds
from moeparity.logs.report import LogReport
from moeparity.output.findings import Finding, findings_code
from moeparity.output.words import printable
from moeparity.plan.spec import reader
from moeparity.plan.spec.log_schema import LogCheck
from moeparity.progress import Callback

_IMPOSSIBLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 can't contain, not even escaped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The result for one recipe or one check of logs: a finding per expectation, or the error because of which it could
    not be checked.

    entry: the new entry for a baseline; None without a baseline.
    """

    recipe: str
    findings: tuple[Finding, ...]
    error: str | None
    report: Report | LogReport | None
    seconds: float
    error_code: int = 2
    entry: Entry | None = None

    @property
    def exit_code(self) -> int:
        """0 if every expectation is met, 1 if one is not, 3 if one is open; `error_code` if it could not be checked: 2,
        or 70 for a mistake of moeparity's own.
        """
        return self.error_code if self.error is not None else findings_code(self.findings)


def beside(results: Sequence[Checked], code: int) -> tuple[str, ...]:
    """What to know even if all recipes pass: by recipe, choices that compute another function."""
    if code:
        return ()
    reports = ((result.recipe, result.report) for result in results)
    return tuple(f"{name}: {choice}" for name, of in reports if isinstance(of, Report) for choice in of.summary.but)


def check(
    recipe: str | Path,
    *,
    device: str = "auto",
    allow_code: bool = False,
    memory_limit: float | None = None,
    progress: Callback | None = None,
    baseline: Baseline | None = None,
    workers: str | int | None = None,
) -> Checked:
    """Run a recipe as `moeparity.bisect` does, or measure the logs of a `kind: log`, and compare the report with
    `expect:`; for a recipe also with the baseline. workers: as in `moeparity.bisect`; logs are measured in this
    process.

    Mistakes in the expectations are found before the run, which is the first to import torch; only names of toggles
    that `split:` makes are checked after it. A user's mistake becomes part of the result, so that other recipes go on;
    any other exception is raised.
    """
    path, start = Path(recipe), time.perf_counter()
    report: Report | LogReport | None = None
    entry = None
    try:
        if reader.is_log_check(path):
            _refuse_baseline(path, baseline)
            report, findings = _logs(path, progress)
        else:
            limits = {"allow_code": allow_code, "memory_limit": memory_limit}
            run = {"device": device, "workers": workers, "progress": progress}
            report, findings, entry = _recipe(path, baseline, run, **limits)
    except MoeparityError as error:
        return Checked(
            recipe=display_path(path),
            findings=(),
            error=str(error),
            report=None,
            seconds=time.perf_counter() - start,
        )
    return Checked(
        recipe=display_path(path),
        findings=findings,
        error=None,
        report=report,
        seconds=time.perf_counter() - start,
        entry=entry,
    )


def _recipe(
    path: Path, baseline: Baseline | None, run: Mapping[str, Any], **limits: Any
) -> tuple[Report, tuple[Finding, ...], Entry | None]:
    outline, recipe = outline_recipe(path), reader.read_recipe(path)
    if baseline is not None:
        baseline.refuse_unkept(path)
    from moeparity.bisection.options import Options
    from moeparity.bisection.pipeline import bisect

    options = Options(**limits, digests=baseline is not None)
    report = bisect(path, options=options, **run)
    refuse_unknown(recipe.expect, (toggle.name for toggle in report.toggles), Where(path))
    findings = tuple(expectation.finding(report) for expectation in outline.expectations)
    if baseline is None:
        return report, findings, None
    folder = reader.find_file(recipe.checkpoint, Where(path, recipe.line_of("checkpoint")), "checkpoint")
    present = present_run(report, outline, folder, sampled=recipe.tokens.sample is not None)
    lock_entry = baseline.lock.recipes.get(baseline.key(path))
    return report, (*findings, *baseline.findings(path, present)), updated(lock_entry, present)


def _refuse_baseline(path: Path, baseline: Baseline | None) -> None:
    if baseline is not None:
        raise MoeparityError(
            f"{Where(path)}: a check of logs has no choices and no nodes, so that a lock keeps nothing of it. "
            "Check it without --baseline."
        )


def _logs(path: Path, progress: Callback | None) -> tuple[LogReport, tuple[Finding, ...]]:
    from moeparity.logs.log_files import measure_check

    log_check = read(path, LogCheck)
    file = log_check.expect.noise
    noise = {} if file is None else noise_bounds(file, Where(path))
    report = measure_check(log_check, Where(path), noise, progress=progress)
    return report, log_findings(log_check.expect, report, noise)


def junit(results: Sequence[Checked]) -> str:
    """The XML document, without a final newline."""
    suites = [_suite(result) for result in results]
    root = ET.Element("testsuites", name="moeparity", time=_seconds(sum(result.seconds for result in results)))
    for name in ("tests", "failures", "errors"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in suites)))
    root.extend(suites)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode")


def _suite(result: Checked) -> ET.Element:
    failures = sum(finding.status in {"fail", "inconclusive"} for finding in result.findings)
    skipped = sum(finding.status == "not judged" for finding in result.findings)
    suite = ET.Element(
        "testsuite",
        name=_text(result.recipe),
        tests=str(len(result.findings) or 1),
        failures=str(failures),
        errors=str(int(result.error is not None)),
        skipped=str(skipped),
        time=_seconds(result.seconds),
    )
    if result.report is not None:
        _properties(suite, result.report)
    if result.error is not None:
        case = ET.SubElement(suite, "testcase", classname=_text(result.recipe), name="recipe", time="0")
        ET.SubElement(case, "error", type="error", message=_text(result.error))
    for finding in result.findings:
        _case(suite, result, finding)
    return suite


def _case(suite: ET.Element, result: Checked, finding: Finding) -> None:
    # All expectations of a recipe are judged by one run, and the suite has its time.
    case = ET.SubElement(suite, "testcase", classname=_text(result.recipe), name=_text(finding.expectation), time="0")
    if finding.status == "not judged":
        ET.SubElement(case, "skipped", message=_text(finding.found))
        return
    if finding.status in {"ok", "updated"}:
        ET.SubElement(case, "system-out").text = _text(finding.found)
        return
    kind = "inconclusive" if finding.status == "inconclusive" else "expectation"
    words = "open" if kind == "inconclusive" else "not met"
    message = _text(f"{finding.expectation} is {words}: {finding.found}")
    ET.SubElement(case, "failure", type=kind, message=message)


def _properties(suite: ET.Element, report: Report | LogReport) -> None:
    verdict = report.verdict
    assert verdict is not None, "what is checked has a gate"
    value = verdict.value
    texts = {
        "verdict": verdict.status,
        verdict.metric: f"{value.estimate:.6g} [{value.low:.6g}, {value.high:.6g}]",
        "gate": f"{verdict.below:g}",
        **(_of_log(report) if isinstance(report, LogReport) else _of_run(report)),
    }
    properties = ET.SubElement(suite, "properties")
    for name, text in texts.items():
        ET.SubElement(properties, "property", name=name, value=_text(text))


def _of_log(report: LogReport) -> dict[str, str]:
    return {
        "files": ", ".join(f"{file.path} ({file.format})" for file in report.files),
        "sequences": str(report.sequences),
        "scored tokens": str(report.tokens),
    }


def _of_run(report: Report) -> dict[str, str]:
    run = report.run
    return {
        "reference": report.reference.in_full,
        "candidate": report.candidate.in_full,
        "record": "; ".join(map(str, report.records)),
        **({"but": "; ".join(report.summary.but)} if report.summary.but else {}),
        "scored tokens": str(run.scored_tokens),
        "device": run.device,
        "cpu": run.cpu,
        "torch": run.torch,
        "threads": str(run.threads),
    }


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}"


def _text(text: str) -> str:
    return _IMPOSSIBLE.sub("\N{REPLACEMENT CHARACTER}", printable(text))
