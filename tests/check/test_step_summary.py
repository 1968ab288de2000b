"""Checked recipes in Markdown: what is not met comes first, and the recipe that matters most has its picture."""

from __future__ import annotations

from dataclasses import replace

from moeparity.check.step_summary import picture, shown, step_summary
from moeparity.output.findings import Finding, Status
from tests.bisection.reports import grown
from tests.bisection.test_markdown import SUMMARY
from tests.check.test_junit import BROKEN, GOOD, MIXED
from tests.output.test_markdown import shown as rendered

REPORT = replace(grown([1e-3, 1e-2]), summary=SUMMARY)


def test_what_is_not_met_comes_first_and_everything_is_there() -> None:
    statuses: list[Status] = ["ok", "not judged", "updated", "inconclusive", "fail"]
    findings = tuple(Finding(expectation=f"e | {s}", status=s, found="<i>0.5</i>") for s in statuses)
    mixed = replace(MIXED, findings=findings, report=REPORT)
    text = step_summary([replace(GOOD, report=REPORT), mixed, BROKEN], "3 recipes; exit 2", "x.svg")
    tags, words = rendered(text)
    assert text.startswith("### moeparity check: ERROR\n\n3 recipes; exit 2\n")
    rows = [line for line in text.splitlines() if "e \\| " in line]
    assert [row.split(" | ")[0] for row in rows] == ["| **FAIL**", "| **open**", "| updated", "| not judged", "| ok"]
    assert 'could not be checked: c.yaml:3: "<&>" is unknown' in words
    assert "i" not in tags
    # The recipe that is not met is shown, once, and not the one that is.
    assert text.index("![Error after each layer](x.svg)") > text.index("recipes/b.yaml")
    assert text.count("<details open>") == text.count("</details>") == 1


def test_every_recipe_that_is_not_met_is_told_of() -> None:
    """Folded but for the first, which alone has the picture; what is met is not told of."""
    second = replace(
        MIXED, recipe="recipes/z.yaml", report=replace(REPORT, summary=replace(SUMMARY, blame="other one"))
    )
    text = step_summary([replace(GOOD, report=REPORT), replace(MIXED, report=REPORT), second], "x", "x.svg")
    assert text.count("<details open>") == text.count("![") == 1
    assert text.count("<details>") == 1
    assert text.index("recipes/z.yaml") < text.index("<details>") < text.index("other one")
    assert text.count("What was found") == 2


def test_without_a_report_there_is_no_picture() -> None:
    assert shown([BROKEN]) is None
    assert picture([BROKEN]) is None
    assert "![" not in step_summary([BROKEN], "x")
    assert picture([replace(GOOD, report=REPORT)]) is not None
