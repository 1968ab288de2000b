"""Checked recipes for a pull request or the summary of a step, as Markdown with one small picture."""

from __future__ import annotations

from collections.abc import Sequence

from moeparity.bisection.markdown import drawing, parts
from moeparity.bisection.report import Report
from moeparity.check.recipes import Checked
from moeparity.output.findings import PRECEDENCE, combined
from moeparity.output.markdown import escaped, table
from moeparity.output.status import state_of

_WORDS = {"ok": "ok", "fail": "**FAIL**", "inconclusive": "**open**", "not judged": "not judged", "updated": "updated"}


def step_summary(results: Sequence[Checked], status: str, drawn: str | None = None) -> str:
    """A headline, and for every recipe its findings, those that are not met first; `status` is the status in words.

    Every recipe that does not meet what it expects has its summary too, folded but for the one that `shown` picks; that
    one has its picture, which lies in the file `drawn`.
    """
    code = combined(result.exit_code for result in results)
    sections = [f"### moeparity check: {state_of(code).upper()}", escaped(status)]
    picked = shown(results)
    for result in results:
        sections.append(f"#### {escaped(result.recipe)}")
        if result.error is not None:
            sections.append(f"could not be checked: {escaped(result.error)}")
        if result.findings:
            sections.append(_findings(result))
        if (result is picked or result.exit_code) and isinstance(result.report, Report):
            first, picture_of_it = ("<details open>", drawn) if result is picked else ("<details>", None)
            sections += [
                f"{first}<summary>What was found</summary>",
                *parts(result.report, picture_of_it),
                "</details>",
            ]
    return "\n\n".join(sections)


def shown(results: Sequence[Checked]) -> Checked | None:
    """The recipe whose report is shown: the first of those whose exit code counts most."""
    ran = [result for result in results if isinstance(result.report, Report)]
    return min(ran, key=lambda result: PRECEDENCE.index(result.exit_code), default=None)


def picture(results: Sequence[Checked]) -> str | None:
    """The picture of that report as SVG; None where there is nothing to draw."""
    picked = shown(results)
    return drawing(picked.report) if picked is not None and isinstance(picked.report, Report) else None


def _findings(result: Checked) -> str:
    order = {status: number for number, status in enumerate(("fail", "inconclusive", "updated", "not judged", "ok"))}
    ordered = sorted(result.findings, key=lambda finding: order[finding.status])
    cells = [(finding.expectation, finding.found) for finding in ordered]
    head, rule, *rows = table(["", "expected", "found"], [("", *row) for row in cells]).split("\n")
    marked = (f"| {_WORDS[finding.status]} |{row[4:]}" for finding, row in zip(ordered, rows, strict=True))
    return "\n".join([head, rule, *marked])
