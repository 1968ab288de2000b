"""Checked recipes as Markdown for a pull request or a CI summary, with one small picture."""

from __future__ import annotations

from collections.abc import Sequence

from moeparity.bisection.markdown import blocks, drawing, pictures
from moeparity.bisection.report import Report
from moeparity.check.recipes import Checked, beside
from moeparity.output.findings import PRECEDENCE, combined
from moeparity.output.markdown import escaped, in_markdown, table
from moeparity.output.status import headline, state_of, with_but

_WORDS = {"ok": "ok", "fail": "**FAIL**", "inconclusive": "**open**", "not judged": "not judged", "updated": "updated"}


def step_summary(results: Sequence[Checked], status: str, drawn: str | None = None) -> str:
    """A headline (`status`), and for every recipe its findings, those that are not met first.

    Every recipe that does not meet its expectations has a summary of its report too. All are folded except that of the
    recipe that `shown` picks, which has its picture, from the file `drawn`.
    """
    code = combined(result.exit_code for result in results)
    but = beside(results, code)
    sections = [f"### moeparity check: {headline(state_of(code), but)}", escaped(with_but(status, but))]
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
                *in_markdown(blocks(result.report)),
                *pictures(result.report, picture_of_it),
                "</details>",
            ]
    return "\n\n".join(sections)


def shown(results: Sequence[Checked]) -> Checked | None:
    """The recipe whose report is shown: the first one with the exit code that counts most."""
    ran = [result for result in results if isinstance(result.report, Report)]
    return min(ran, key=lambda result: PRECEDENCE.index(result.exit_code), default=None)


def picture(results: Sequence[Checked]) -> str | None:
    """The picture of that report as SVG; None if there is nothing to draw."""
    picked = shown(results)
    return drawing(picked.report) if picked is not None and isinstance(picked.report, Report) else None


def _findings(result: Checked) -> str:
    order = {status: number for number, status in enumerate(("fail", "inconclusive", "updated", "not judged", "ok"))}
    ordered = sorted(result.findings, key=lambda finding: order[finding.status])
    cells = [(finding.expectation, finding.found) for finding in ordered]
    head, rule, *rows = table(["", "expected", "found"], [("", *row) for row in cells]).split("\n")
    marked = (f"| {_WORDS[finding.status]} |{row[4:]}" for finding, row in zip(ordered, rows, strict=True))
    return "\n".join([head, rule, *marked])
