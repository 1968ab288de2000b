"""Sequences over all passes that computed a part of them, and which passes read the keys of which."""

from __future__ import annotations

from moeparity.evidence.alignment.streams import earlier_passes, streams
from moeparity.evidence.alignment.tokens import Sequence, Tokens
from moeparity.evidence.diff.shared_tokens import matched


def test_streams_of_a_server_go_on_in_any_slot() -> None:
    """Flat batches: a prefill of two sequences, a step of both, a step in which the second stands first."""
    passes = [
        Tokens((5,), (Sequence((1, 2, 3), (0, 1, 2)), Sequence((7, 8), (3, 4)))),
        Tokens((2,), (Sequence((4,), (0,), 3), Sequence((9,), (1,), 2))),
        Tokens((2,), (Sequence((6,), (0,), 3), Sequence((5,), (1,), 4))),
    ]
    first, second = streams(passes)
    assert (first.ids, second.ids) == ([1, 2, 3, 4, 5], [7, 8, 9, 6])
    assert first.cells == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 1)]
    whole = Tokens((2, 5), (Sequence((7, 8, 9, 6), (1, 2, 3, 4)), Sequence((1, 2, 3, 4, 5), (5, 6, 7, 8, 9))))
    shared = matched([whole], passes)
    assert {key: (places.a.tolist(), places.b.tolist()) for key, places in shared.items()} == {
        (0, 0): ([1, 2, 5, 6, 7], [3, 4, 0, 1, 2]),
        (0, 1): ([3, 8], [1, 0]),
        (0, 2): ([4, 9], [0, 1]),
    }


def test_a_step_that_could_be_of_two_sequences_is_of_none() -> None:
    passes = [
        Tokens((4,), (Sequence((1, 2), (0, 1)), Sequence((1, 2), (2, 3)))),
        Tokens((1,), (Sequence((4,), (0,), 2),)),
        Tokens((3,), (Sequence((0,), (0,)), Sequence((0,), (1,)), Sequence((5,), (2,), 2))),
    ]
    # The second pass's slot says which; the third's does not.
    assert [stream.ids for stream in streams(passes)] == [[1, 2, 4], [1, 2, 5], [0], [0]]
    assert [stream.ids for stream in streams([passes[0], passes[2]])] == [[1, 2], [1, 2], [0], [0]]


def test_a_row_that_begins_with_padding_keeps_its_slot() -> None:
    """Rows 1 and 2 have one length; the first step has no token of row 0 and one of either, the second all three."""
    first = Tokens((3, 2), (Sequence((7,), (3,)), Sequence((8,), (5,))))
    second = Tokens((3, 1), (Sequence((5,), (0,)), Sequence((1,), (1,), 1), Sequence((2,), (2,), 1)))
    assert [stream.ids for stream in streams([first, second])] == [[7, 1], [8, 2], [5]]


def step(columns: int, *keys: tuple[int, ...]) -> Tokens:
    """A pass of one token in each row, the last of these keys."""
    rows = (Sequence((9,), (row,), len(of_row) - 1, keys=of_row) for row, of_row in enumerate(keys))
    return Tokens((len(keys), 1), tuple(rows), columns)


def prompt(*keys: tuple[int, ...]) -> Tokens:
    """A padded pass of rows of three columns, with tokens at these."""
    rows = (
        Sequence((9,) * len(of_row), tuple(3 * row + column for column in of_row), keys=of_row)
        for row, of_row in enumerate(keys)
    )
    return Tokens((len(keys), 3), tuple(rows), 3)


def test_of_batches_with_as_many_columns_a_step_goes_on_that_with_its_mask_else_the_latest() -> None:
    first, second = prompt((1, 2), (0, 1, 2)), prompt((0, 1, 2), (2,))
    assert earlier_passes([first, second, step(4, (1, 2, 3), (0, 1, 2, 3))])[2] == (0,)
    assert earlier_passes([first, second, step(4, (0, 1, 2, 3), (2, 3))])[2] == (1,)
    # With another mask than either had: as where one batch is generated behind the other.
    assert earlier_passes([first, second, step(4, (0, 3), (0, 3))])[2] == (1,)


def test_a_row_that_is_padding_at_first_begins_later() -> None:
    passes = [prompt((0, 1, 2), ()), step(4, (0, 1, 2, 3), (3,)), step(5, (0, 1, 2, 3, 4), (3, 4))]
    passes[0] = Tokens(passes[0].grid, passes[0].sequences[:1], 3)
    assert earlier_passes(passes) == [(), (0,), (0, 1)]


def test_rows_that_read_keys_of_two_batches_read_those_of_none() -> None:
    alone = [Tokens((1, 2), (Sequence((1, 2), (0, 1)),)), Tokens((1, 3), (Sequence((3, 4, 5), (0, 1, 2)),))]
    joined = Tokens((2, 1), (Sequence((6,), (0,), 2), Sequence((7,), (1,), 3)))
    assert earlier_passes([*alone, joined]) == [(), (), None]
    assert earlier_passes([Tokens((1, 1), (Sequence((6,), (0,), 2),))]) == [None], "its cache was filled before"
