"""A report in a notebook: the words of the text report, escaped, without colours; frames with the report's numbers."""

from __future__ import annotations

import builtins
import math
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from moeparity.bisection.options import Options
from moeparity.bisection.pipeline import bisect
from moeparity.bisection.report import FRAMES, Report
from moeparity.errors import MoeparityError
from moeparity.output.notebook import WIDTH
from tests.bisection.reports import on_screen
from tests.errors.base import BASE

HOSTILE = "</td><script>alert(1)</script>&amp;\x1b]0;owned\x07\u202e"


@pytest.fixture(scope="module")
def report() -> Report:
    return bisect(BASE / "recipe.yaml", device="cpu", options=Options(attribute=True, swap=("layers[*].moe",)))


class Page(HTMLParser):
    """The elements of a piece of HTML, each closed, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_it_says_what_the_text_says(report: Report) -> None:
    html = report._repr_html_()
    page = Page(html)
    assert page.open == []
    assert page.tags == {"div", "table", "tr", "th", "td", "details", "summary", "pre"}
    printed = [line.rstrip() for line in on_screen(report, WIDTH, ()).strip("\n").splitlines()]
    assert unescape(html[html.index("<pre") : html.index("</pre>")]).partition(">")[2].split("\n") == printed
    for line in (report.summary.verdict, report.summary.blame, report.summary.to_set):
        assert line in page.text
    assert len(html) < 20_000


def test_it_is_read_on_light_and_on_dark(report: Report) -> None:
    """No colour of its own."""
    assert not re.search(
        r"color|background|#[0-9a-f]{3,6}\b|rgb|<style|class=\"(?!moeparity-report)", report._repr_html_()
    )


def test_names_out_of_files_are_inert(report: Report) -> None:
    run = replace(report.run, recipe=HOSTILE)
    html = replace(report, run=run, summary=replace(report.summary, starts=HOSTILE)).__class__._repr_html_(
        replace(report, run=run, summary=replace(report.summary, starts=HOSTILE))
    )
    assert "<script" not in html
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", html)
    assert Page(html).tags == Page(report._repr_html_()).tags
    assert r"<script>alert(1)</script>&amp;\x1b]0;owned\x07\u202e" in Page(html).text


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_has_the_numbers_of_the_report(name: str, report: Report) -> None:
    frame = report.frame(name)
    rows = list(FRAMES[name](report) or ())
    assert len(frame) == len(rows)
    if rows and name != "roots":
        first: Any = rows[0]
        for column in frame.columns:
            value = first
            for part in column.split("."):
                value = getattr(value, part)
            assert _same(frame[column].iloc[0], value)


def _same(cell: Any, value: Any) -> bool:
    if isinstance(value, tuple):
        return bool(cell == ", ".join(value))
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return cell is None or math.isnan(cell)
    return bool(cell == value)


def test_frames_of_entries_within_entries(report: Report) -> None:
    toggles = report.frame("toggles")
    assert list(toggles["alone.kl"]) == [toggle.alone.kl for toggle in report.toggles]
    roots = report.frame("roots")
    assert list(roots["choice.attribute"]) == [c.attribute for root in report.roots for c in root.choices]
    assert set(roots["node"]) == {root.node for root in report.roots}


def test_what_is_no_frame(report: Report) -> None:
    with pytest.raises(MoeparityError, match=r"frame 'toggle': expected one of .*Did you mean 'toggles'\?"):
        report.frame("toggle")
    with pytest.raises(MoeparityError, match="frame 'shares': this report has none"):
        replace(report, attribution=None).frame("shares")


def test_without_pandas_one_line_says_what_to_install(report: Report) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return real(name, *arguments, **options)

    with patch.object(builtins, "__import__", without), pytest.raises(MoeparityError) as caught:
        report.frame("toggles")
    assert str(caught.value) == "frame 'toggles': frames need pandas; pip install 'moeparity[pandas]'."


def test_the_extra_that_is_named_is_there() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")
    assert re.search(r'^pandas = \["pandas', text, re.MULTILINE)
