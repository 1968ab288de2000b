"""What the terminal prints, as HTML: structure kept, everything escaped."""

from __future__ import annotations

import pytest
from rich.console import Group
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from moeparity.output.html.markup import escaped, inline, markup, tag
from moeparity.output.tables import Stacked, bullets, plain_grid, plain_table

SPOILT = '<b onclick="x">&\x1b[31m\u202e'


def test_what_others_wrote_is_escaped_and_printable() -> None:
    assert escaped(SPOILT) == "&lt;b onclick=&#34;x&#34;&gt;&amp;\\x1b[31m\\u202e"
    assert tag("p", SPOILT, title=SPOILT).count("<") == 2
    assert tag("td", tag("b", "<"), class_=None, colspan=2) == '<td colspan="2"><b>&lt;</b></td>'


def test_a_table_keeps_its_rows_and_sets_numbers_right() -> None:
    table = plain_table("k3", names="node", names_first=True)
    table.add_row("a<b", "1.5e-04")
    table.add_row("c", "bit-identical")
    html = markup(table, "errors")
    assert 'aria-label="errors"' in html
    assert '<tr><td>a&lt;b</td><td class="num">1.5e-04</td></tr>' in html
    assert '<thead><tr><th scope="col">node</th><th scope="col" class="num">k3</th></tr></thead>' in html


def test_words_are_no_numbers() -> None:
    table = plain_table("state")
    table.add_row("3 of them")
    table.add_row("none")
    assert 'class="num"' not in markup(table)


def test_lists_groups_and_grids() -> None:
    grid = plain_grid(2)
    grid.add_row("recipe", "x.yaml")
    html = markup(Group(bullets(["one", "two"]), Padding(grid, (0, 0, 0, 2))))
    assert "<ul><li>one</li><li>two</li></ul>" in html
    assert '<table class="grid" role="presentation"><tbody><tr><td>recipe</td><td>x.yaml</td></tr>' in html


def test_rows_keep_what_stands_below_them() -> None:
    table = Stacked("toggle", "KL")
    table.add_row("  part", "2e-4 10%", below=["eager -> sdpa"])
    html = markup(table)
    assert '<th scope="row" class="in1">part</th>' in html
    assert '<tr class="below"><td colspan="2"><div>eager -&gt; sdpa</div></td></tr>' in html


def test_styles_of_parts_of_a_text() -> None:
    text = Text.assemble(("FAIL", "bold red"), "  k3")
    assert inline(text) == '<span class="t-bold t-red">FAIL</span>  k3'
    assert markup(Text("\nnote", style="dim")) == '<p class="t-dim">note</p>'


def test_a_bar_of_a_table_is_a_bar() -> None:
    table = plain_table("error")
    table.add_row("######")
    assert 'width="50%"' in markup(table)
    assert "######" not in markup(table)


def test_rows_within_rows_stand_side_by_side() -> None:
    def row(*cells: str) -> Table:
        grid = Table.grid()
        grid.add_row(*cells)
        return grid

    table = Table("micro_batch")
    table.add_column(row("verdict", "k3"))
    table.add_row("4", row("pass", "0"))
    table.add_row("8", row("cannot run"))
    html = markup(table)
    assert html.count("<table") == 1
    assert html.count("<td") == 6
    assert ">k3</th>" in html


def test_what_no_report_prints_is_refused() -> None:
    with pytest.raises(TypeError, match="ProgressBar has no markup"):
        markup(ProgressBar())
