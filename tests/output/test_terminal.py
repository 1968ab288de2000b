"""Blocks on a terminal: numbers stay whole however narrow it is, long sections wait to be asked for."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from moeparity.bisection.divergence.show import growth_table
from moeparity.output.blocks import (
    MOST_ROWS,
    Bar,
    Block,
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
    notes,
    plain,
    stacked,
    table,
    thinned,
)
from moeparity.output.figures import Series
from moeparity.output.terminal import in_lines, render, text
from tests.bisection.reports import grown
from tests.printed import printed


def shown(*blocks: Block, width: int) -> list[str]:
    return printed(blocks, width).splitlines()


def trimmed(*blocks: Block, width: int = 80) -> list[str]:
    """The lines without what fills them."""
    return [line.rstrip() for line in shown(*blocks, width=width)]


@pytest.mark.parametrize("width", [66, 80, 90, 100, 120, 160])
def test_numbers_are_never_cut(width: int) -> None:
    lines = shown(growth_table(grown([1e-6, 1.25e-4, 1.25e-4], {1: 1})), width=width)
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    row = next(line for line in lines if "layers[1]" in line)
    assert all(number in row for number in ("1.25e-04", "x125.00", "0.25%"))


def test_a_narrow_table_wraps_headers_first_and_then_leaves_out_the_bars() -> None:
    wide, narrow, least = (
        shown(growth_table(grown([1e-6, 1.25e-4, 1.25e-4], {1: 1})), width=width) for width in (120, 100, 80)
    )
    assert "per layer" in wide[0]
    assert "#" in "".join(narrow)
    assert "per layer" not in "".join(narrow)
    assert "#" not in "".join(least)
    assert "equal" in least[0]


def test_of_a_path_too_long_for_a_line_the_middle_is_left_out() -> None:
    grid = names([("file", "graphs/profiles/hf-eager.yaml:13, default")])
    assert trimmed(grid, width=26) == ["file  graphs...er.yaml:13,", "      default"]


@pytest.mark.parametrize("width", [16, 17, 20, 25, 40])
def test_other_long_words_break_behind_a_mark(width: int) -> None:
    """Nothing of an address or of a flag is lost, and none of its words is cut."""
    words = [
        "layers[0:48].moe.experts.gate_up:accumulate",
        "--attention-backend=flashinfer",
        "VLLM_USE_V2_MODEL_RUNNER=0",
    ]
    lines = trimmed(names([(" ".join(words),)]), width=width)
    assert max(map(len, lines)) <= width
    assert "".join(lines).replace(" ", "") == "".join(words)
    parts = {part for word in words for part in re.split(r"(?<=[.:=_-])", word)}
    assert all(re.split(r"(?<=[.:=_-])|(?<=\])", token)[-1] in parts | {""} or token in words for line in lines
               for token in line.split())  # fmt: skip


def test_a_stacked_table_gives_names_what_numbers_leave() -> None:
    of = stacked(
        columns("class", "KL", first="toggle", words=("class",)),
        [
            Row(("layers[*].moe.experts:activation", "rounding", "2.56e-04"), ("bf16 -> fp32",)),
            Row(("a", "form", "1.00e-05")),
        ],
    )
    assert shown(of, width=80)[1].split() == ["layers[*].moe.experts:activation", "rounding", "2.56e-04"]
    assert trimmed(of, width=40) == [
        "toggle                class     KL",
        "layers[*].moe.        rounding  2.56e-04",
        "experts:activation",
        "  bf16 -> fp32",
        "a                     form      1.00e-05",
    ]


def test_no_sentences_take_no_line() -> None:
    assert shown(bullets([]), width=80) == []


def test_what_goes_on_below_stands_under_its_first_word() -> None:
    assert trimmed(bullets(["one " * 5, "two"]), width=15) == ["- one one one", "  one one", "- two"]
    assert trimmed(lines("one " * 5), width=15) == ["one one one one", "one"]


def test_numbered_lines_keep_their_numbers_and_go_on_under_their_first_word() -> None:
    steps = Lines(("one " * 5, Styled("two", "dim")), "numbered")
    assert trimmed(steps, width=16) == ["1. one one one", "   one one", "2. two"]


def test_lines_below_a_table_have_its_whole_width() -> None:
    of = table(columns("k3", first="node"), [("layers[0]", "1e-4")], "a note that is longer than the table")
    assert trimmed(of) == ["node       k3", "layers[0]  1e-4", "a note that is longer than the table"]
    assert trimmed(notes("one", "two")) == ["one", "two"]


def test_a_bar_is_as_long_as_its_share_and_never_nothing() -> None:
    bars = table(columns("at", words=("at",)), [(Bar(share),) for share in (0.0, 0.5, 1.0)])
    assert trimmed(bars) == ["at", "#", "######", "############"]


def test_parts_of_a_line_have_looks_of_their_own_and_stand_as_they_are() -> None:
    phrase = (Styled("FAIL", "bold red"), "  k3 ", Styled("[0, 1]", "dim"))
    assert trimmed(lines(phrase)) == ["FAIL  k3 [0, 1]"]
    assert [(span.start, span.end, span.style) for span in text(phrase).spans] == [(0, 4, "bold red"), (9, 15, "dim")]
    assert text(Styled("x", "red"), "dim").style == "red"
    assert text("x", "dim").style == "dim"


def test_of_many_rows_the_first_the_last_and_the_peaks_are_shown_and_it_is_said() -> None:
    assert thinned(range(MOST_ROWS), {1}) == (list(range(MOST_ROWS)), [])
    rows, notes = thinned(range(100), {41, 42})
    assert {0, 41, 42, 99} <= set(rows)
    assert rows == sorted(rows)
    assert len(rows) <= MOST_ROWS
    assert [plain(note) for note in notes] == [f"{len(rows)} of 100 rows; all of them are in --json."]


def test_the_word_stands_in_the_first_column_and_the_rest_beside_it() -> None:
    first, *others = shown(Status("inconclusive", "word " * 12), width=40)[:3]
    assert first.startswith("INCONCLUSIVE  word")
    assert others
    assert all(line.startswith(" " * 14 + "word") for line in others)


def test_lines_of_a_status_stand_below_it_however_short_their_names() -> None:
    status = Status("pass", "k3 0", ("the noise is greater",), (("cost", "1 s"), ("set", "nothing")))
    assert trimmed(status)[:3] == ["PASS, but  the noise is greater; k3 0", "cost       1 s", "set        nothing"]
    assert trimmed(Status("pass", "k3 0", (), (("set", "nothing"),)))[:2] == ["PASS    k3 0", "set     nothing"]


PICTURE = Figure("a picture")
REPORT = (
    Status("done", "all"),
    group("Short", lines("always"), PICTURE),
    group("Long", lines("of many"), asked_for="long", holds="what is long"),
    group("", lines("without a title")),
    group("Longer", lines("of more"), asked_for="longer", holds="what is longer"),
    group("And long", lines("of as many"), asked_for="long", holds="something else"),
    group("Drawn", PICTURE),
)
CLOSING = ["", "DONE    all"]


def test_the_status_comes_again_at_the_end_and_of_pictures_nothing_is_said() -> None:
    everything = [
        *("DONE    all", "", "Short", "  always", "", "Long", "  of many", "without a title"),
        *("", "Longer", "  of more", "", "And long", "  of as many"),
    ]
    assert trimmed(*REPORT) == [*everything, *CLOSING]


def test_of_long_sections_those_asked_for_are_printed_and_of_the_others_a_line() -> None:
    opening = ["DONE    all", "", "Short", "  always"]
    request = ["", "On request (-v for all of them)", "  --section long    what is long"]
    longer = "  --section longer  what is longer"
    without, with_long, with_all = (
        [line.rstrip() for line in printed(REPORT, 80, names).splitlines()] for names in ASKED_FOR
    )
    assert without == [*opening, "without a title", *request, longer, *CLOSING]
    long = ["", "Long", "  of many"], ["", "And long", "  of as many"]
    request[-1] = longer
    assert with_long == [*opening, *long[0], "without a title", *long[1], *request, *CLOSING]
    assert with_all == trimmed(*REPORT)


ASKED_FOR: tuple[tuple[str, ...], ...] = (), ("long",), ("long", "longer")


def test_blocks_without_a_status_have_none_at_the_end() -> None:
    assert trimmed(lines("one"), group("Two", lines("three"))) == ["one", "", "Two", "  three"]


def test_groups_within_groups_are_below_their_title() -> None:
    whole = group("Two", lines("a"), group("Three", lines("b"), PICTURE))
    assert trimmed(whole) == ["", "Two", "  a", "  Three", "    b"]


SERIES = Series(
    title="Some", name="some", label="k3", x=[0], x_label="x", y_label="y", lines=[], words=[], chart=("a ##", "b #")
)


def test_a_series_is_the_chart_that_it_has_for_a_terminal() -> None:
    assert trimmed(group("Some", lines("one"), SERIES)) == ["", "Some", "  one", "  a ##", "  b #"]
    assert trimmed(group("Some", lines("one"), replace(SERIES, chart=()))) == ["", "Some", "  one"]
    assert trimmed(group("Some", replace(SERIES, chart=()))) == []


def test_lines_without_looks_are_those_that_are_printed() -> None:
    assert in_lines(REPORT, 80) == [line.rstrip() for line in printed(REPORT, 80).splitlines()]


def test_a_picture_is_refused() -> None:
    with pytest.raises(TypeError, match="Figure is not shown on a terminal"):
        render(PICTURE)
