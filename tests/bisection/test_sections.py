"""The one list of what is shown: what opens a report, what a terminal is asked for, what a page answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from moeparity.bisection.arrival.data import Arrival
from moeparity.bisection.degeneracy.data import Degeneracy
from moeparity.bisection.determinism.data import Determinism
from moeparity.bisection.divergence.data import Divergence
from moeparity.bisection.envelope.data import Envelope
from moeparity.bisection.flips.data import RoutingFlips
from moeparity.bisection.floor.data import Floor
from moeparity.bisection.graph.data import OpGraph
from moeparity.bisection.nearest.data import NearestAnswers
from moeparity.bisection.nonfinite.data import Nonfinite
from moeparity.bisection.oracle.data import Oracle
from moeparity.bisection.per_token.data import PerToken
from moeparity.bisection.provenance.data import Provenance
from moeparity.bisection.real_ranks.data import RealRanks
from moeparity.bisection.record.data import OtherRecord, Recording
from moeparity.bisection.replay.data import Replay
from moeparity.bisection.report import Report
from moeparity.bisection.run.data import RunFacts
from moeparity.bisection.schedule.data import Schedule
from moeparity.bisection.sections import ON_REQUEST, QUESTIONS, SECTIONS, Section, document, screen
from moeparity.bisection.shares.data import Attribution
from moeparity.bisection.summary.data import Summary
from moeparity.bisection.toggles.data import Toggled
from moeparity.bisection.tokens.data import OfTokens
from moeparity.bisection.trace.data import Traced
from moeparity.bisection.verdict.data import Verdicts
from moeparity.output.blocks import Block, Document, Group, Lines, Status, plain
from moeparity.output.html.page import html
from moeparity.search.blame import Blame, Fix
from tests.bisection.reports import REPORT, grown
from tests.printed import printed

REPORTS = {"few fields": REPORT, "growth": grown([1e-6, 1e-4, 1e-4], {1: 1})}


@pytest.fixture(params=[*REPORTS, "drawn"])
def report(request: pytest.FixtureRequest) -> Report:
    drawn: Report = request.getfixturevalue("drawn_report")
    return REPORTS.get(request.param, drawn)


def groups(blocks: Iterable[Block]) -> list[Group]:
    return [block for block in blocks if isinstance(block, Group)]


def id_of(section: Section) -> str:
    return f"{section.data.__name__}-{getattr(section.show, '__name__', '')}"


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


NONE: dict[type, dict[str, Any]] = {
    Arrival: {"arrival": None},
    Attribution: {"attribution": None},
    Determinism: {"not_deterministic": ()},
    Envelope: {"envelope": None},
    Floor: {"floor": None},
    NearestAnswers: {"nearest": ()},
    OtherRecord: {"other_record": None},
    Nonfinite: {"nonfinite": None},
    OfTokens: {"classes": (), "warnings": ()},
    OpGraph: {"graph": None},
    Oracle: {"oracle": None},
    PerToken: {"per_token": None},
    Provenance: {"provenance": None},
    RealRanks: {"real_ranks": None},
    Replay: {"replay": None},
    RoutingFlips: {"flips": None},
    Schedule: {"schedule": None},
    Toggled: dict.fromkeys(("toggles", "swaps", "reading", "offsets", "left_out"), ()),
    Traced: {"trace": None},
}
"""What a report holds where it has none of these data."""
ALWAYS = {Degeneracy, Divergence, Recording, RunFacts, Summary, Verdicts}


def test_of_all_data_it_is_known_whether_a_report_may_be_without() -> None:
    assert NONE.keys() | ALWAYS == {section.data for section in SECTIONS}
    assert not NONE.keys() & ALWAYS


@pytest.mark.parametrize("section", [section for section in SECTIONS if section.data in NONE], ids=id_of)
def test_without_its_data_a_section_shows_nothing(section: Section, drawn_report: Report) -> None:
    for of in (drawn_report, *REPORTS.values()):
        assert list(section.show(replace(of, **NONE[section.data]))) == []


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
