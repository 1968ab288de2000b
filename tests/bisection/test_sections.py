"""The one list of what is shown: what opens a report, what a terminal is asked for, what a page answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from moeparity.bisection.report import Report
from moeparity.bisection.sections import ON_REQUEST, QUESTIONS, SECTIONS, Section, document, screen
from moeparity.output.blocks import Block, Document, Group, Lines, Status, plain
from moeparity.output.html.page import html
from moeparity.search.blame import Blame, Fix
from tests.bisection.reports import REPORT, folder_of, grown, name_of
from tests.printed import printed

REPORTS = {"few fields": REPORT, "growth": grown([1e-6, 1e-4, 1e-4], {1: 1})}


@pytest.fixture(params=[*REPORTS, "drawn"])
def report(request: pytest.FixtureRequest) -> Report:
    drawn: Report = request.getfixturevalue("drawn_report")
    return REPORTS.get(request.param, drawn)


def groups(blocks: Iterable[Block]) -> list[Group]:
    return [block for block in blocks if isinstance(block, Group)]


def test_the_first_section_opens_and_no_other_has_a_status(report: Report) -> None:
    first, *others = SECTIONS
    (opening,) = first.show(report)
    assert isinstance(opening, Status)
    assert opening.state == report.verdict.status
    shown = [block for section in others for block in section.show(report)]
    assert shown
    assert {type(block) for block in shown} <= {Group, Lines}
    assert document(report).status == opening


def test_no_group_of_a_page_is_lost(report: Report) -> None:
    """A page drops what answers none of its questions."""
    page = document(report)
    keys = {question.key for question in page.questions}
    assert keys == {question.key for question in QUESTIONS}
    assert {group.question for group in groups(page.blocks)} <= keys
    rendered = html(page)
    # What is written below a title is tested with the page; a group without a title is under its question's.
    for group in groups(page.blocks):
        assert f"<h3>{group.title}</h3>" in rendered or not group.title, group.title


def test_a_terminal_goes_without_what_is_for_pages_alone(report: Report) -> None:
    on_page = [block for section in SECTIONS if section.on_page for block in section.show(report)]
    titles = [group.title for group in groups(on_page)]
    on_screen = [group.title for group in groups(screen(report, ON_REQUEST))]
    assert not set(titles) & set(on_screen)
    assert sorted([*titles, *on_screen]) == sorted(group.title for group in groups(document(report).blocks))


def test_whatever_waits_to_be_asked_for_says_what_it_holds(report: Report) -> None:
    short = printed(screen(report, ()), 100, ())
    _, _, listed = short.partition("\nOn request (-v for all of them)\n")
    lines = [line.split(maxsplit=2) for line in listed.split("\n\n")[0].splitlines()]
    waiting = list(dict.fromkeys(group.asked_for for group in groups(screen(report, ())) if group.asked_for))
    assert [line[:2] for line in lines] == [["--section", name] for name in waiting]
    assert all(len(line) == 3 for line in lines)
    assert set(waiting) <= set(ON_REQUEST)


@pytest.mark.parametrize("name", ON_REQUEST)
def test_what_is_asked_for_is_shown_or_said_not_to_be_there(name: str, report: Report) -> None:
    text = printed(screen(report, (name,)), 100, (name,))
    present = [group.title for group in groups(screen(report, ())) if group.asked_for == name]
    assert all(f"\n{title}\n" in text for title in present)
    assert (f"--section {name}: nothing; " in text) == (not present)
    assert f"  --section {name}  " not in text.partition("\nOn request")[2]


def test_of_all_that_there_are_nobody_misses_one(report: Report) -> None:
    assert "nothing; the recipe" not in printed(screen(report, ON_REQUEST), 100, ON_REQUEST)


NONE: dict[str, dict[str, Any]] = {
    "arrival": {"arrival": None},
    "spikes": {"spikes": None},
    "shares": {"attribution": None},
    "determinism": {"not_deterministic": ()},
    "envelope": {"envelope": None},
    "floor": {"floor": None},
    "nearest": {"nearest": ()},
    "record.show_other": {"other_record": None},
    "nonfinite": {"nonfinite": None},
    "tokens": {"classes": (), "warnings": ()},
    "graph": {"graph": None},
    "oracle": {"oracle": None},
    "per_token": {"per_token": None},
    "provenance": {"provenance": None},
    "real_ranks": {"real_ranks": None},
    "replay": {"replay": None},
    "flips": {"flips": None},
    "schedule": {"schedule": None},
    "toggles": dict.fromkeys(("toggles", "swaps", "reading", "offsets", "left_out"), ()),
    "trace": {"trace": None},
    "updates": {"updates": None},
    "rewards": {"rewards": None},
}
"""What a report holds where it has none of these data."""
ALWAYS = {"degeneracy", "divergence", "record", "run", "summary", "verdict"}


def nothing_for(section: Section) -> dict[str, Any] | None:
    return NONE.get(name_of(section), NONE.get(folder_of(section)))


def test_of_all_data_it_is_known_whether_a_report_may_be_without() -> None:
    assert {name.partition(".")[0] for name in NONE} | ALWAYS == set(map(folder_of, SECTIONS))
    assert not NONE.keys() & ALWAYS


@pytest.mark.parametrize("section", [section for section in SECTIONS if nothing_for(section)], ids=name_of)
def test_without_its_data_a_section_shows_nothing(section: Section, drawn_report: Report) -> None:
    nothing = nothing_for(section)
    assert nothing is not None
    for of in (drawn_report, *REPORTS.values()):
        assert list(section.show(replace(of, **nothing))) == []


def absent(report: Report, key: str) -> str:
    (question,) = (question for question in document(report).questions if question.key == key)
    return question.absent


def test_where_nothing_answers_a_question_the_page_says_why() -> None:
    without = replace(REPORT, summary=replace(REPORT.summary, record="none given: this compares two simulations"))
    assert absent(without, "record") == "None given: this compares two simulations."
    assert absent(REPORT, "flips") == "No token does."
    assert absent(replace(REPORT, flips=None), "flips") == "There is no router that both sides run."
    wanted = replace(REPORT, blame=Blame(kind="one", named=("a",), fix=Fix(toggles=("a",), exact=True)))
    summary = replace(REPORT.summary, to_set="a on the candidate")
    assert absent(replace(wanted, summary=summary), "fixes").endswith("To set: a on the candidate")
    assert absent(replace(REPORT, blame=Blame(kind="nobody")), "fixes") == "Nothing that differs has to be restored."


def test_every_question_is_answered_or_says_why_not(report: Report) -> None:
    page: Document = document(report)
    answered = {group.question for group in groups(page.blocks)} | {QUESTIONS[0].key}
    for question in page.questions:
        if question.key not in answered and question.absent:
            assert plain(question.absent) in html(page).replace("&#39;", "'")
