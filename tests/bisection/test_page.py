"""The page of a report: it says what the terminal says, in its own order, and escapes what others wrote."""

from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from moeparity.bisection.report import Report
from moeparity.bisection.sections import ON_REQUEST, QUESTIONS, SECTIONS, document, screen
from moeparity.output.html.page import html
from moeparity.output.words import printable
from tests.bisection.pages import HOSTILE, hostile
from tests.bisection.reports import REPORT
from tests.printed import printed


class Text(HTMLParser):
    """The words of a page, and the tags that are in it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.inside[-1:]):
            self.words.append(data)


def words(text: str) -> str:
    """A text without what a screen adds to it."""
    return re.sub(r"[\s#]+", "", text)


def test_every_part_of_the_screen_answers_a_question() -> None:
    keys = [question.key for question in QUESTIONS]
    assert len(keys) == len(set(keys))
    assert {section.question for section in SECTIONS} == set(QUESTIONS)


def test_the_page_says_every_line_that_the_terminal_prints(drawn_report: Report) -> None:
    page_words = words("".join(Text(html(document(drawn_report))).words))
    for line in printed(screen(drawn_report, ON_REQUEST), 10_000).splitlines():
        # Cells of a row stand apart on the screen; on the page each is by itself.
        for cell in filter(None, map(words, re.split(r"\s{2,}", re.sub(r"^\s*- ", "", line)))):
            assert cell in page_words, line


def test_questions_come_in_their_order(drawn_report: Report) -> None:
    page = html(document(drawn_report))
    places = [page.find(f'<section id="{question.key}"') for question in QUESTIONS]
    assert -1 not in places
    assert places == sorted(places)


def test_nothing_that_others_wrote_becomes_markup(drawn_report: Report) -> None:
    clean, spoilt = (Text(html(document(report))) for report in (drawn_report, hostile(drawn_report)))
    assert {tag for tag, _ in spoilt.tags} <= {tag for tag, _ in clean.tags}
    assert "img" not in {tag for tag, _ in spoilt.tags}
    assert len([tag for tag, _ in spoilt.tags if tag == "script"]) == 2
    assert not [attribute for _, attributes in spoilt.tags for attribute in attributes if attribute.startswith("on")]
    assert "{{7*7}}" in "".join(spoilt.words)
    assert "\u202e" not in "".join(spoilt.words), "what turns the direction of writing is shown by its number"


def data(report: Report) -> dict[str, Any]:
    """What the page's scripts are handed."""
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', html(document(report)), re.DOTALL)
    assert block is not None
    assert "<" not in block[1]
    handed: dict[str, Any] = json.loads(unescape(block[1]))
    return handed


def test_data_ends_no_script(drawn_report: Report) -> None:
    pieces = data(hostile(drawn_report))["tokens"]["pieces"]
    assert pieces[0][0] == printable(HOSTILE) != HOSTILE


def test_prompts_are_on_no_page_unless_asked_for(drawn_report: Report) -> None:
    tokens = data(drawn_report)["tokens"]
    assert tokens["pieces"] is None
    assert "input_ids" not in tokens


def test_the_shipped_recipe_stays_small(drawn_report: Report) -> None:
    assert len(html(document(drawn_report)).encode()) < 400_000


def test_the_same_report_is_the_same_page(drawn_report: Report) -> None:
    assert html(document(drawn_report)) == html(document(drawn_report))


@pytest.mark.parametrize("question", ["record", "flips", "no-effect"])
def test_what_is_not_there_is_said(question: str) -> None:
    page = html(document(REPORT))
    section = page[page.index(f'<section id="{question}"') :]
    assert len(Text(section[: section.index("</section>")]).words) > 2


def test_a_page_asks_no_network(drawn_report: Report, tmp_path: Path) -> None:
    page = html(document(drawn_report))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src &#39;none&#39;")
    assert "unsafe" not in policy[1]
    assert not [a for _, a in Text(page).tags if any(str(a.get(k, "")).startswith("http") for k in ("src", "href"))]
