"""What the terminal prints, as HTML: structure kept, everything escaped."""

from __future__ import annotations

import pytest

from moeparity.output.blocks import (
    Bar,
    Column,
    Figure,
    Lines,
    Row,
    Status,
    Styled,
    bullets,
    columns,
    group,
    lines,
    names,
    stacked,
    table,
)
from moeparity.output.html.blocks import markup, phrase

SPOILT = '<b onclick="x">&\x1b[31m\u202e'


def test_a_table_keeps_its_rows_and_sets_numbers_right() -> None:
    html = markup(table(columns("k3", first="node"), [("a<b", "1.5e-04"), ("c", "bit-identical")]), "errors")
    assert 'aria-label="errors"' in html
    assert '<tr><td>a&lt;b</td><td class="num">1.5e-04</td></tr>' in html
    assert '<tr><td>c</td><td class="num">bit-identical</td></tr>' in html
    assert '<thead><tr><th scope="col">node</th><th scope="col" class="num">k3</th></tr></thead>' in html


@pytest.mark.parametrize("kind", ["word", "name"])
def test_words_are_no_numbers(kind: str) -> None:
    column = Column("state", "word" if kind == "word" else "name")
    assert 'class="num"' not in markup(table([column], [("3 of them",), ("none",)]))


def test_lists_groups_and_grids() -> None:
    html = markup(group("", bullets(["one", "two"]), names([("recipe", "x.yaml")])))
    assert "<ul><li>one</li><li>two</li></ul>" in html
    assert '<table class="grid" role="presentation"><tbody><tr><td>recipe</td><td>x.yaml</td></tr>' in html


def test_a_table_in_a_group_is_called_by_its_title() -> None:
    html = markup(group("Toggles", table(columns("k3"), [("1",)])), "errors")
    assert 'aria-label="Toggles"' in html


def test_rows_keep_what_stands_below_them() -> None:
    of = stacked(columns("KL", first="toggle"), [Row(("  part", "2e-4 10%"), ("eager -> sdpa",))])
    html = markup(of)
    assert '<th scope="row" class="in1">part</th>' in html
    assert '<tr class="below"><td colspan="2"><div>eager -&gt; sdpa</div></td></tr>' in html
    deep = markup(stacked(of.columns, [Row((f"{' ' * 12}part", "1")), Row(("whole", "2"))]))
    assert '<th scope="row" class="in3">part</th>' in deep
    assert '<th scope="row">whole</th>' in deep


def test_styles_of_parts_of_a_text() -> None:
    assert phrase((Styled("FAIL", "bold red"), "  k3")) == '<span class="t-bold t-red">FAIL</span>  k3'
    assert markup(lines(Styled("\nnote", "dim"))) == '<p class="t-dim">note</p>'
    of = table(columns("k3"), [Row((Styled("1", "bold red"),), style="dim")], Styled("a note", "dim"))
    assert '<tr class="t-dim"><td class="num"><span class="t-bold t-red">1</span></td></tr>' in markup(of)
    assert markup(of).endswith('<p class="t-dim">a note</p>')


def test_a_look_that_the_style_sheet_lacks_is_none() -> None:
    assert phrase((Styled("x", "italic"),)) == "x"
    assert markup(lines(Styled("x", "italic red"))) == '<p class="t-red">x</p>'


def test_lines_stay_lines_and_numbered_ones_a_list() -> None:
    assert markup(Lines(("a\n  b",))) == "<p>a<br>  b</p>"
    assert markup(Lines(("a", (Styled("b", "dim"), "c")), "numbered")) == (
        '<ol><li>a</li><li><span class="t-dim">b</span>c</li></ol>'
    )


def test_a_status_opens_with_its_headline() -> None:
    html = markup(Status("pass", "k3 0", ("the noise is greater",), (("record", "no record"),)))
    first = '<tr><td><span class="t-bold t-yellow">PASS, but</span></td><td>the noise is greater; k3 0</td></tr>'
    assert f"<tbody>{first}<tr><td>record</td><td>no record</td></tr></tbody>" in html
    assert '<span class="t-bold t-red">FAIL</span>' in markup(Status("fail", "k3 1"))


def test_a_bar_of_a_table_is_a_bar() -> None:
    html = markup(table(columns("error"), [(Bar(0.5),)]))
    assert 'width="50%"' in html
    assert "#" not in html


def test_whatever_others_wrote_is_text() -> None:
    blocks = (
        Status("fail", SPOILT, (SPOILT,), ((SPOILT, SPOILT),)),
        lines(SPOILT, Styled(SPOILT, "dim"), (SPOILT, Styled(SPOILT, "red"))),
        bullets([SPOILT]),
        Lines((SPOILT,), "numbered"),
        names([(SPOILT,)]),
        table(columns(SPOILT, first=SPOILT), [(SPOILT, SPOILT)], SPOILT),
        stacked(columns(SPOILT), [Row((SPOILT,), (SPOILT,))]),
    )
    html = markup(group(SPOILT, *blocks))
    assert "<b" not in html.replace("<br>", "")
    assert not {"\x1b", "\u202e"} & set(html)
    assert html.count("&lt;b onclick=&#34;x&#34;&gt;&amp;\\x1b[31m\\u202e") == 21


def test_what_no_report_prints_is_refused() -> None:
    with pytest.raises(TypeError, match="Figure has no markup"):
        markup(Figure("a picture"))
