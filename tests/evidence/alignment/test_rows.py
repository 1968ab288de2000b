"""Which token each row of a value is of, by the axes of the value."""

from __future__ import annotations

import pytest

from moeparity.evidence.alignment.rows import token_of_rows
from moeparity.evidence.alignment.tokens import Tokens


@pytest.mark.parametrize(
    ("shape", "grid", "expected"),
    [
        ((2, 3, 8), (2, 3), [0, 1, 2, 3, 4, 5]),
        ((6, 8), (2, 3), [0, 1, 2, 3, 4, 5]),
        ((2, 2, 4), (1, 2), None),
        ((2, 5, 3, 8), (2, 3), [0, 1, 2] * 5 + [3, 4, 5] * 5),
        ((3, 2, 8), (2, 3), [0, 3, 1, 4, 2, 5]),
        ((5, 8), (2, 3), None),
        ((2, 3, 3, 8), (2, 3), None),
        ((4, 6, 8), (6,), [0, 1, 2, 3, 4, 5] * 4),
        ((8,), (2, 3), None),
    ],
)
def test_which_token_a_row_is_of(shape: tuple[int, ...], grid: tuple[int, ...], expected: list[int] | None) -> None:
    rows = token_of_rows(shape, Tokens(grid, ()))
    assert (None if rows is None else rows.tolist()) == expected
