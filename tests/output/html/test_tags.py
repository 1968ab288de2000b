"""Elements of HTML: whatever is not ours is escaped."""

from __future__ import annotations

from moeparity.output.html.tags import escaped, keys, note, scrolled, tag

SPOILT = '<b onclick="x">&\x1b[31m\u202e'


def test_what_others_wrote_is_escaped_and_printable() -> None:
    assert escaped(SPOILT) == "&lt;b onclick=&#34;x&#34;&gt;&amp;\\x1b[31m\\u202e"
    assert tag("p", SPOILT, title=SPOILT).count("<") == 2
    assert tag("td", tag("b", "<"), class_=None, colspan=2) == '<td colspan="2"><b>&lt;</b></td>'


def test_names_of_attributes_are_those_of_html() -> None:
    written = tag("p", [tag("b", "x"), tag("i", "y")], class_="a", aria_label="l", hidden=False, for_="f")
    assert written == '<p class="a" aria-label="l" for="f"><b>x</b><i>y</i></p>'


def test_lines_stay_lines() -> None:
    assert escaped("a<\nb") == "a&lt;<br>b"


def test_what_others_wrote_is_no_name_of_a_table_nor_of_a_look() -> None:
    for written in (scrolled(tag("table"), SPOILT), keys([("a", SPOILT)]), note(SPOILT)):
        assert "onclick=&#34;" in written
        assert "\u202e" not in written
    assert 'aria-label="table"' in scrolled(tag("table"), "")


def test_nothing_to_say_takes_no_element() -> None:
    assert (keys([]), note("")) == ("", "")
    assert keys([("gate", "the gate"), ("low", "lowest")]) == (
        '<div class="keys"><span class="key k-gate">the gate</span><span class="key k-low">lowest</span></div>'
    )
