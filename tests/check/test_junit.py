"""JUnit XML: what a reader of it sees, whatever characters the messages hold."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from moeparity.check.recipes import Checked, junit
from moeparity.output.findings import Finding, Status
from tests.bisection.reports import REPORT


def finding(status: Status, value: str = "0.5") -> Finding:
    return Finding(expectation=f"k3 {status}", status=status, found=value)


GOOD = Checked(recipe="recipes/a.yaml", findings=(finding("ok"),), error=None, report=REPORT, seconds=1.25)
MIXED = Checked(
    recipe="recipes/b.yaml",
    findings=(finding("ok"), finding("fail"), finding("inconclusive")),
    error=None,
    report=REPORT,
    seconds=2.0,
)
BROKEN = Checked(recipe="recipes/c.yaml", findings=(), error='c.yaml:3: "<&>" is unknown', report=None, seconds=0.0)


def test_a_suite_per_recipe_and_a_case_per_expectation() -> None:
    root = ET.fromstring(junit([GOOD, MIXED, BROKEN]))
    assert (root.tag, root.get("tests"), root.get("failures"), root.get("errors")) == ("testsuites", "5", "2", "1")
    assert root.get("time") == "3.250"
    counts = [[s.get(k) for k in ("name", "tests", "failures", "errors", "skipped")] for s in root]
    assert counts == [
        ["recipes/a.yaml", "1", "0", "0", "0"],
        ["recipes/b.yaml", "3", "2", "0", "0"],
        ["recipes/c.yaml", "1", "0", "1", "0"],
    ]
    assert [case.get("name") for case in root[1].iter("testcase")] == ["k3 ok", "k3 fail", "k3 inconclusive"]
    assert {case.get("classname") for case in root[1].iter("testcase")} == {"recipes/b.yaml"}


def test_open_is_a_failure_of_its_own_type_and_a_broken_recipe_an_error() -> None:
    root = ET.fromstring(junit([MIXED, BROKEN]))
    failures = {failure.get("type"): failure.get("message") for failure in root.iter("failure")}
    assert failures == {
        "expectation": "k3 fail is not met: 0.5",
        "inconclusive": "k3 inconclusive is open: 0.5",
    }
    assert [error.get("message") for error in root.iter("error")] == ['c.yaml:3: "<&>" is unknown']
    assert not list(root.iter("skipped"))


def test_the_machine_is_told() -> None:
    root = ET.fromstring(junit([GOOD, BROKEN]))
    properties = {prop.get("name"): prop.get("value") for prop in root.iter("property")}
    assert properties["cpu"] == REPORT.run.cpu
    assert properties["verdict"] == "fail"
    assert properties["k3"] == "0.0013 [0.0009, 0.0017]"
    assert root[1].find("properties") is None


def test_characters_that_xml_cannot_hold_are_replaced() -> None:
    text = "a\x00b\x1b[31m\ud800 <&\"'> \ufffe é"
    bad = Checked(recipe=f"r{text}", findings=(finding("fail", text),), error=None, report=None, seconds=0.0)
    written = junit([bad]).encode("utf-8")
    suite = ET.fromstring(written)[0]
    assert suite.get("name") == "ra\\x00b\\x1b[31m\\ud800 <&\"'> \ufffd é"
    assert "\\x1b" in suite[0][0].get("message", "")


def test_a_hostile_name_is_text_and_nothing_else() -> None:
    name = '"]]>--><error/>\n\x1b]0;a\x07\u202eb&#0;'
    ok, fail = finding("ok", name), Finding(expectation=name, status="fail", found=name)
    written = junit([Checked(recipe=name, findings=(ok, fail), error=None, report=REPORT, seconds=0.0)])
    assert not set("\x1b\x07\u202e") & set(written)
    (suite,) = ET.fromstring(written)
    read = '"]]>--><error/>\n\\x1b]0;a\\x07\\u202eb&#0;'
    assert suite.get("name") == read
    assert [case.get("name") for case in suite.iter("testcase")] == ["k3 ok", read]
    assert suite.findtext("testcase/system-out") == read
    assert not list(suite.iter("error"))
