"""Tables on narrow terminals: numbers stay whole."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console, RenderableType

from moeparity.bisection.divergence.text import growth_table
from moeparity.output.tables import Stacked, bullets, plain_grid
from tests.bisection.reports import grown


def shown(body: RenderableType, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(body)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [66, 80, 90, 100, 120, 160])
def test_numbers_are_never_cut(width: int) -> None:
    lines = shown(growth_table(grown([1e-6, 1.25e-4, 1.25e-4], {1: 1})), width)
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    row = next(line for line in lines if "layers[1]" in line)
    assert all(number in row for number in ("1.25e-04", "x125.00", "0.25%"))


def test_a_narrow_table_wraps_headers_first_and_then_leaves_out_the_bars() -> None:
    wide, narrow, least = (
        shown(growth_table(grown([1e-6, 1.25e-4, 1.25e-4], {1: 1})), width) for width in (120, 100, 80)
    )
    assert "per layer" in wide[0]
    assert "#" in "".join(narrow)
    assert "per layer" not in "".join(narrow)
    assert "#" not in "".join(least)
    assert "equal" in least[0]


def test_of_a_path_too_long_for_a_line_the_middle_is_left_out() -> None:
    grid = plain_grid(2)
    grid.add_row("file", "graphs/profiles/hf-eager.yaml:13, default")
    assert [line.rstrip() for line in shown(grid, 26)] == ["file  graphs...er.yaml:13,", "      default"]


@pytest.mark.parametrize("width", [16, 17, 20, 25, 40])
def test_other_long_words_break_behind_a_mark(width: int) -> None:
    """Nothing of an address or of a flag is lost, and none of its words is cut."""
    words = [
        "layers[0:48].moe.experts.gate_up:accumulate",
        "--attention-backend=flashinfer",
        "VLLM_USE_V2_MODEL_RUNNER=0",
    ]
    grid = plain_grid(1)
    grid.add_row(" ".join(words))
    lines = [line.rstrip() for line in shown(grid, width)]
    assert max(map(len, lines)) <= width
    assert "".join(lines).replace(" ", "") == "".join(words)
    parts = {part for word in words for part in re.split(r"(?<=[.:=_-])", word)}
    assert all(re.split(r"(?<=[.:=_-])|(?<=\])", token)[-1] in parts | {""} or token in words for line in lines
               for token in line.split())  # fmt: skip


def test_a_stacked_table_gives_names_what_numbers_leave() -> None:
    table = Stacked("toggle", "class", "KL")
    table.add_row("layers[*].moe.experts:activation", "rounding", "2.56e-04", below=["bf16 -> fp32"])
    table.add_row("a", "form", "1.00e-05", below=[])
    assert shown(table, 80)[1].split() == ["layers[*].moe.experts:activation", "rounding", "2.56e-04"]
    narrow = [line.rstrip() for line in shown(table, 40)]
    assert narrow == [
        "toggle                class     KL",
        "layers[*].moe.        rounding  2.56e-04",
        "experts:activation",
        "  bf16 -> fp32",
        "a                     form      1.00e-05",
    ]


def test_no_sentences_take_no_line() -> None:
    assert shown(bullets([]), 80) == []
