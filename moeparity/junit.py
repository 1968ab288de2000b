"""Checked recipes as JUnit XML, the format that CI services show test results from.

One `testsuite` per recipe, one `testcase` per expectation. Not met is a `failure` of type `expectation`; open is a
`failure` of type `inconclusive`, not `skipped`, since viewers show what is skipped as green; a recipe that could not be
checked is one testcase with an `error`. Attributes as in the schema of Jenkins' xUnit plugin (junit-10.xsd).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from moeparity.bisection.expectations import Checked, Finding
from moeparity.bisection.report import Report
from moeparity.logs.report import LogReport

_IMPOSSIBLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold, not even escaped."""


def junit(checked: Sequence[Checked]) -> str:
    """The XML document, without a final newline."""
    suites = [_suite(one) for one in checked]
    root = ET.Element("testsuites", name="moeparity", time=_seconds(sum(one.seconds for one in checked)))
    for name in ("tests", "failures", "errors"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in suites)))
    root.extend(suites)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode")


def _suite(checked: Checked) -> ET.Element:
    failures = sum(finding.status != "ok" for finding in checked.findings)
    suite = ET.Element(
        "testsuite",
        name=_text(checked.recipe),
        tests=str(len(checked.findings) or 1),
        failures=str(failures),
        errors=str(int(checked.error is not None)),
        skipped="0",
        time=_seconds(checked.seconds),
    )
    if checked.report is not None:
        _properties(suite, checked.report)
    if checked.error is not None:
        case = ET.SubElement(suite, "testcase", classname=_text(checked.recipe), name="recipe", time="0")
        ET.SubElement(case, "error", type="error", message=_text(checked.error))
    for finding in checked.findings:
        _case(suite, checked, finding)
    return suite


def _case(suite: ET.Element, checked: Checked, finding: Finding) -> None:
    # All expectations of a recipe are judged by one run, whose time the suite has.
    case = ET.SubElement(suite, "testcase", classname=_text(checked.recipe), name=_text(finding.expectation), time="0")
    if finding.status == "ok":
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
    found = {
        "verdict": verdict.status,
        verdict.metric: f"{value.estimate:.6g} [{value.low:.6g}, {value.high:.6g}]",
        "gate": f"{verdict.below:g}",
        **(_of_log(report) if isinstance(report, LogReport) else _of_run(report)),
    }
    properties = ET.SubElement(suite, "properties")
    for name, text in found.items():
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
        "reference": str(report.reference),
        "candidate": str(report.candidate),
        "scored tokens": str(run.scored_tokens),
        "device": run.device,
        "cpu": run.cpu,
        "torch": run.torch,
        "threads": str(run.threads),
    }


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}"


def _text(text: str) -> str:
    return _IMPOSSIBLE.sub("\N{REPLACEMENT CHARACTER}", text)
