"""Tables on narrow terminals: numbers stay whole."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType

from moeparity.bisection.divergence.text import growth_table
from moeparity.output.tables import bullets, plain_grid
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


def test_words_too_long_for_a_line_are_folded() -> None:
    grid = plain_grid(2)
    grid.add_row("file", "graphs/profiles/hf-eager.yaml:13")
    assert "".join(line.split()[-1] for line in shown(grid, 20)) == "graphs/profiles/hf-eager.yaml:13"


def test_no_sentences_take_no_line() -> None:
    assert shown(bullets([]), 80) == []
