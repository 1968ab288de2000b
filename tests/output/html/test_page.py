"""A page: one file, with a policy that lets nothing in, and a library that is the one of its makers."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

from moeparity.output.blocks import Block, Document, Group, Question, Status, group, lines, table
from moeparity.output.blocks import columns as columns_of
from moeparity.output.figures import Plot, Strips
from moeparity.output.html import page as module
from moeparity.output.html.packing import packed, script_data
from moeparity.output.html.page import SCRIPTS, html
from tests.printed import page_of

STATIC = Path(module.__file__).parent / "static"
LARGEST_LIBRARY = 60_000


def test_the_library_is_the_one_of_its_makers() -> None:
    vendor = json.loads((STATIC / "vendor" / "vendor.json").read_text("utf-8"))
    files = {file.name: file for file in (STATIC / "vendor").iterdir() if file.name != "vendor.json"}
    assert files.keys() == vendor["sha256"].keys()
    for name, digest in vendor["sha256"].items():
        assert hashlib.sha256(files[name].read_bytes()).hexdigest() == digest, name
    assert vendor["version"] in (STATIC / "vendor" / "uPlot.iife.min.js").read_text("utf-8")[:200]
    assert sum(file.stat().st_size for file in files.values()) < LARGEST_LIBRARY
    assert {path.name for path in STATIC.glob("*.js")} == set(SCRIPTS)


def test_arrays_come_back() -> None:
    values = np.array([[1.5, np.nan], [-np.inf, 0.0]], dtype=np.float32)
    box = packed(values)
    assert (box["kind"], box["shape"]) == ("f4", [2, 2])
    assert np.frombuffer(base64.b64decode(box["base64"]), dtype="<f4").tobytes() == values.tobytes()
    with pytest.raises(KeyError):
        packed(np.zeros(1))


def test_data_holds_nothing_that_html_knows() -> None:
    text = script_data({"name": "</script><!--<script>&\u202e", "inf": float("inf")})
    assert not set("<>&\u202e") & set(text)
    assert json.loads(text) == {"name": "</script><!--<script>&\\u202e", "inf": "inf"}


STATUS = Status("done", "k3 1e-4, no gate; exit 0")
METRICS = Document(
    command="metrics",
    subject="<log>.jsonl",
    blocks=(STATUS, lines("files  a<b"), group("Metrics", lines("one"))),
)


def test_what_a_command_prints_becomes_sections() -> None:
    page = html(METRICS)
    assert re.findall(r"<h2[^>]*>(.*?)</h2>", page) == ["The answer", "Metrics"]
    assert page.count("k3 1e-4, no gate") == 1, "the closing line is left out"
    assert "&lt;log&gt;.jsonl" in page
    assert "uPlot" not in page, "without pictures nothing is needed to draw them"


def test_scripts_and_styles_are_those_that_the_policy_names() -> None:
    for page in (html(METRICS), page_of(Plot(title="a", name="a", label="a", data={}))):
        for kind, name in (("script", "script"), ("style", "style")):
            (body,) = re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
            digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
            assert f"{name}-src &#39;sha256-{digest.replace('+', '&#43;')}&#39;" in page or f"sha256-{digest}" in page


def test_only_what_scripts_draw_needs_the_library() -> None:
    strips = Strips(title="Shares", strips=[], over=[1.0], unit="nats")
    plot = Plot(title="Tokens", name="tokens", label="each", data={"k3": 1})
    assert "uPlot" not in page_of(strips)
    assert "uPlot" in page_of(group("Some", lines("a"), plot))
    assert json.loads(_data(page_of(plot))) == {"tokens": {"k3": 1}}


def _data(page: str) -> str:
    (data,) = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    return str(data)


ANSWER = Question(key="answer", short="Answer", title="What is it?")
QUESTIONS = (
    ANSWER,
    Question(key="none", short="None", title="What is nowhere?"),
    Question(key="blame", short="Blame", title="Who?"),
    Question(key="absent", short="Absent", title="What is not there?", absent="Nothing <here>."),
)


def sections(*blocks: Block, questions: tuple[Question, ...] = QUESTIONS) -> list[tuple[str, list[str], str]]:
    """The sections of a page: anchor, titles within, and the words."""
    page = html(Document(command="test", subject="x", blocks=(STATUS, *blocks), questions=questions))
    bodies = re.findall(r'<section id="([^"]*)".*?>(.*?)</section>', page, re.DOTALL)
    contents = re.findall(r'<li><a href="#(.*?)"', page)
    assert contents == [key for key, _ in bodies]
    return [
        (key, re.findall(r"<h[34]>(.*?)</h[34]>", body), " ".join(re.sub(r"<[^>]*>", " ", body).split()))
        for key, body in bodies
    ]


def test_groups_stand_under_the_questions_that_they_answer_in_their_order() -> None:
    shown = sections(
        group("Shares", lines("b"), question="blame"),
        lines("opens"),
        group("Gate", lines("a"), question="answer"),
        group("", lines("also opens")),
        group("Beside it", lines("c")),
        group("Toggles", lines("d"), question="blame"),
    )
    assert shown == [
        ("answer", ["Gate"], "What is it? DONE k3 1e-4, no gate; exit 0 opens also opens Gate a"),
        ("blame", ["Shares", "Toggles"], "Who? Shares b Toggles d"),
        ("absent", [], "What is not there? Nothing &lt;here&gt;."),
        ("s-beside-it", [], "Beside it c"),
    ]


def test_a_group_of_nothing_answers_nothing() -> None:
    assert [key for key, _, _ in sections(group("Shares", question="blame"), group("Empty"))] == ["answer", "absent"]


def test_a_picture_has_a_title_of_its_own_unless_it_is_the_groups() -> None:
    def pictures(title: str) -> Group:
        return group("Shares", Strips(title=title, strips=[], over=[1.0], unit="nats"), question="blame")

    assert [titles for _, titles, _ in sections(pictures("Alone"), pictures("Shares"), questions=QUESTIONS[2:3])] == [
        ["Shares", "Alone", "Shares"]
    ]


def test_what_is_asked_for_on_a_terminal_is_all_on_the_page() -> None:
    shown = sections(group("Long", lines("all of it"), asked_for="long", holds="what is long", question="blame"))
    assert shown[1] == ("blame", ["Long"], "Who? Long all of it")


def test_tables_are_called_by_their_groups() -> None:
    page = page_of(group("Outer", table(columns_of("k3"), [("1",)]), group("", table(columns_of("k3"), [("1",)]))))
    assert page.count('aria-label="Outer"') == 2


def test_the_title_says_what_came_of_it() -> None:
    status = Status("pass", "k3 0", ("the noise is greater",))
    page = html(Document(command="check", subject="<a>\u202e.yaml", blocks=(status,)))
    assert "<title>PASS, but: &lt;a&gt;\\u202e.yaml (check)</title>" in page
    assert '<span class="badge is-pass">PASS, but</span>' in page
