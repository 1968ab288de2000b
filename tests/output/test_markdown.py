"""Whatever files hold is text in Markdown: judged by a parser of CommonMark and GitHub's tables."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from moeparity.output.blocks import Bar, Block, Document, Figure, Lines, Row, Status, Styled, bullets, columns, group
from moeparity.output.blocks import lines as lines_of
from moeparity.output.blocks import table as table_of
from moeparity.output.markdown import MOST, escaped, in_markdown, markdown, picture, table
from moeparity.output.words import printable

PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
HOSTILE = [
    "# a heading",
    "- a list",
    "1. a list",
    "12) a list",
    "=====",
    "---",
    "-",
    "3.",
    "- - -",
    "+ a",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</details>",
    "<!-- hidden",
    "[a](javascript:alert(1))",
    "![a](http://e.org/x.png)",
    "[a]: http://e.org",
    "`code` ``more`` ```",
    "a | b | c",
    "a \\| b \\",
    "*a* **b** _c_ __d__ ~~e~~",
    "$x$ $$y$$",
    "&lt;b&gt; &amp; &#60;",
    "two\nlines\n\n# and more",
    "> quoted",
    "    code",
    "\x1b[31m \u202e",
    "a  \nb",
]


def visible_text(text: str) -> str:
    """What a reader sees of a text."""
    return " ".join(printable(text).split())


def shown(markdown: str) -> tuple[set[str], str]:
    """The tags of what is rendered, and its words."""
    rendered = PARSER.render(markdown).replace("<!-- -->", "")
    return set(re.findall(r"<(/?[a-zA-Z!][^\s>]*)", rendered)), html.unescape(re.sub(r"<[^>]*>", "", rendered))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_words_are_shown_as_they_are(text: str) -> None:
    tags, words = shown(escaped(text))
    assert tags <= {"p", "/p"}
    assert words.strip() == visible_text(text)
    tags, words = shown(table(["a", "b"], [[text, text]]))
    assert tags == {f"{end}{tag}" for tag in ("table", "thead", "tbody", "tr", "th", "td") for end in ("", "/")}
    assert words.split() == ["a", "b", *visible_text(text).split(), *visible_text(text).split()]


@given(st.text(max_size=40))
def test_any_words_are(text: str) -> None:
    tags, words = shown(f"### {escaped(text)} end")
    assert tags == {"h3", "/h3"}
    assert words.split() == [*visible_text(text).split(), "end"]


@pytest.mark.parametrize(
    ("text", "apart"),
    [("@octocat", "@<!-- -->octocat"), ("GH-12", "GH<!-- -->-12"), ("www.e.org", "www<!-- -->.e.org")],
)
def test_names_numbers_and_addresses_are_no_links(text: str, apart: str) -> None:
    assert escaped(text) == apart
    assert escaped("https://e.org") == "https:/<!-- -->/e.org"
    assert escaped("o/r#12") == "o/r\\#<!-- -->12"


def test_a_picture_has_a_name_that_is_one() -> None:
    tags, _ = shown(picture("a ](x) <b>", "p (1)] \u00e9.svg"))
    assert tags == {"p", "img", "/p"}
    assert "(p%20%281%29%5d%20%c3%a9.svg)" in picture("a", "p (1)] \u00e9.svg")


def test_a_document_opens_with_its_headline_and_its_command() -> None:
    status = Status("pass", "k3 | 0", ("the noise is greater",))
    short = Document(
        command="check", subject="x", blocks=(status, group("Gate", lines_of("one", Styled("two", "dim"))))
    )
    assert markdown(short) == (
        "### moeparity check: PASS, but\n\nthe noise is greater; k3 \\| 0\n\n**Gate**\n\none\ntwo"
    )
    assert markdown(Document(command="bisect", subject="x", blocks=(status,))).startswith("### moeparity: PASS, but\n")


def test_a_status_with_lines_is_a_table() -> None:
    (of,) = in_markdown([Status("fail", "k3 1", (), (("blame", "a | b"),))])
    assert of == "|  |  |\n| --- | --- |\n| verdict | k3 1 |\n| blame | a \\| b |"


def test_every_kind_of_block_has_its_form_and_a_picture_none() -> None:
    rows = [Row(("a", Bar(0.5)), ("a line below",)), Row(("b", ("1", Styled(" *", "dim"))))]
    parts = list(
        in_markdown(
            [
                bullets(["one", "two"]),
                Lines(("a", "b"), "numbered"),
                Figure("p"),
                table_of(columns("k3", first="node"), rows),
            ]
        )
    )
    assert parts == ["- one\n- two", "1. a\n1. b", "| node | k3 |\n| --- | --- |\n| a | 50% |\n| b | 1 \\* |"]


def test_of_a_long_table_the_first_rows_are_shown_and_it_is_said() -> None:
    (of,) = in_markdown([table_of(columns("k3"), [(str(number),) for number in range(MOST + 3)])])
    assert of.split("\n")[-3:] == [f"| {MOST - 1} |", "", "3 more are in the JSON."]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_words_in_blocks_are_shown_as_they_are(text: str) -> None:
    blocks: tuple[Block, ...] = (
        Status("fail", text, (), ((text, text),)),
        Lines((text, Styled(text), (text,))),
        bullets([text]),
        table_of(columns("k3"), [(text,)]),
    )
    page = markdown(Document(command="check", subject=text, blocks=(*blocks, group(text, *blocks))))
    tags, _ = shown(page)
    ours = ("table", "thead", "tbody", "tr", "th", "td", "h3", "p", "ul", "li", "strong")
    assert tags <= {f"{end}{tag}" for tag in ours for end in ("", "/")}
