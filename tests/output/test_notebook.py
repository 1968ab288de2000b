"""Blocks in a notebook: the status as a table, the terminal's words behind it, everything escaped."""

from __future__ import annotations

import html
import re

from moeparity.output.blocks import Status, group, lines
from moeparity.output.notebook import WIDTH, columns, notebook
from tests.bisection.reports import TRIAL, toggle
from tests.printed import printed

HOSTILE = "</pre><script>x</script>&\u202e"
BLOCKS = (
    Status("pass", HOSTILE, ("the noise is greater",), (("record", "no record"),)),
    group("Short", lines(HOSTILE)),
    group("Long", lines("of many"), asked_for="long", holds="what is long"),
)


def cells(page: str) -> list[str]:
    return [html.unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", page)]


def text(page: str) -> str:
    (body,) = re.findall(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL)
    return html.unescape(body)


def test_the_status_is_a_table_and_the_text_the_terminals() -> None:
    page = notebook(BLOCKS)
    shown = HOSTILE.replace("\u202e", "\\u202e")
    assert cells(page) == ["PASS, but", f"the noise is greater; {shown}", "record", "no record"]
    printed_lines = [line.rstrip() for line in printed(BLOCKS, WIDTH).splitlines()]
    assert text(page).splitlines() == [line.replace("\u202e", "\\u202e") for line in printed_lines]
    assert "<script>" not in page
    assert "\u202e" not in page


def test_of_long_sections_those_asked_for_are_in_it() -> None:
    assert "of many" in text(notebook(BLOCKS, ["long"]))
    assert "of many" not in text(notebook(BLOCKS, []))
    assert "--section long" in text(notebook(BLOCKS, []))


def test_fields_of_entries_within_stand_behind_their_name() -> None:
    of = dict(columns(toggle("a", TRIAL, None)))
    assert (of["name"], of["alone.kl"], of["restored"]) == ("a", TRIAL.kl, None)
    assert dict(columns({"a": 1})) == {"a": 1}
