"""Passes of a program, laid on a grid: which sequence each run is, its rows, and the schedule."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from moeparity.evidence.alignment.grid import NOWHERE, OnGrid
from moeparity.evidence.alignment.streams import by_pass, streams
from moeparity.evidence.alignment.tokens import Sequence as Part
from moeparity.evidence.alignment.tokens import Tokens, of_requests
from moeparity.evidence.trace.records import Batch
from moeparity.plan.schedule.steps import Copy, Span

Rows = Sequence[tuple[str, int, list[int]]]
"""Of a step each request, the position of its first token, and its tokens."""
A, B, C = [1, 2, 3, 4, 5], [6, 7], [1, 2, 3, 9]


Pass = tuple[torch.Tensor, Tokens]


def way(rows: Rows, padding: int = 0) -> Pass:
    """A step of these rows in this order; rows that pad hold the token 0."""
    requests, starts, tokens = zip(*rows, strict=True)
    ids = torch.tensor([[token for each in tokens for token in each] + [0] * padding])
    lengths = tuple(map(len, tokens))
    return ids, of_requests(Batch(step=1, requests=requests, starts=starts, tokens=lengths, padding=padding), ids)


def grid(*sequences: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences that end at the right as ids and mask."""
    length = max(map(len, sequences))
    ids = torch.tensor([[0] * (length - len(each)) + each for each in sequences])
    mask = torch.tensor([[False] * (length - len(each)) + [True] * len(each) for each in sequences])
    return ids, mask


CHUNKED = [
    way([("b", 0, B[:1]), ("a", 0, A[:2])]),
    way([("a", 2, A[2:4]), ("b", 1, B[1:])], padding=2),
    way([("a", 4, A[4:])]),
]
"""Two requests: one in chunks of two, beside the other's only decoding step; their rows are exchanged on the way."""


def parts_of(ways: Sequence[Pass]) -> list[list[tuple[int, int, int, int, str]]]:
    """Of each step its parts: the stream, the position and place of its first token, how many there are, whose."""
    passes = [tokens for _, tokens in ways]
    return [
        [(run, part.start, part.places[0], len(part.places), part.request) for run, part in parts]
        for parts in by_pass(streams(passes), len(passes))
    ]


def test_parts_go_on_where_their_run_ended() -> None:
    assert parts_of(CHUNKED) == [
        [(0, 0, 0, 1, "b"), (1, 0, 1, 2, "a")],
        [(1, 2, 0, 2, "a"), (0, 1, 2, 1, "b")],
        [(1, 4, 0, 1, "a")],
    ]


def test_a_request_that_begins_anew_is_another_run() -> None:
    """One that was preempted starts over, under its old name."""
    ways = [way([("a", 0, A[:3])]), way([("a", 0, A[:4])]), way([("a", 4, A[4:])])]
    assert [[part[0] for part in parts] for parts in parts_of(ways)] == [[0], [1], [1]]


def test_rows_are_tokens_of_the_sequences_with_the_same_tokens() -> None:
    """By token, whatever the order of rows; rows that pad are of none. The grid pads at the left."""
    requests = OnGrid(CHUNKED, *grid(A, B))
    assert [index.tolist() for index in requests.indices()] == [[8, 0, 1], [2, 3, 9, NOWHERE, NOWHERE], [4]]


def test_the_steps_are_those_of_a_schedule() -> None:
    schedule = OnGrid(CHUNKED, *grid(A, B)).schedule([True] * 3)
    assert schedule is not None
    assert [step.spans for step in schedule.steps] == [
        (Span(1, 3, 4), Span(0, 0, 2)),
        (Span(0, 2, 4), Span(1, 4, 5)),
        (Span(0, 4, 5),),
    ]
    assert [(step.phase, step.padding, step.scored) for step in schedule.steps] == [
        ("prefill", 0, (0, 1)),
        ("chunk", 2, (0, 1)),
        ("decode", 0, (0,)),
    ]
    assert {step.shape for step in schedule.steps} == {"flat"}
    assert not any(step.copies for step in schedule.steps)


def test_one_token_alone() -> None:
    """A prompt of one token is a prefill, though it is as long as a decoding step."""
    requests = OnGrid([way([("a", 0, [6])])], *grid([6]))
    schedule = requests.schedule([True])
    assert schedule is not None
    (step,) = schedule.steps
    assert (step.spans, step.phase) == ((Span(0, 0, 1),), "prefill")
    assert [index.tolist() for index in requests.indices()] == [[0]]


def test_requests_with_the_same_tokens_are_different_sequences() -> None:
    requests = OnGrid([way([("a", 0, B), ("b", 0, B)])], *grid(B, B))
    assert [index.tolist() for index in requests.indices()] == [[0, 1, 2, 3]]


def test_a_request_that_the_grid_has_not_is_padding() -> None:
    requests = OnGrid([way([("other", 0, [8, 8]), ("b", 0, B)])], *grid(A, B))
    schedule = requests.schedule([True])
    assert [index.tolist() for index in requests.indices()] == [[NOWHERE, NOWHERE, 8, 9]]
    assert schedule is not None
    (step,) = schedule.steps
    assert (step.spans, step.padding, step.scored) == ((Span(1, 3, 5),), 2, (0,))


def test_tokens_behind_the_end_of_a_sequence_are_padding() -> None:
    """As the last drawn token, which nobody asked for."""
    requests = OnGrid([way([("b", 0, [*B, 9])])], *grid(B))
    schedule = requests.schedule([True])
    assert [index.tolist() for index in requests.indices()] == [[0, 1, NOWHERE]]
    assert schedule is not None
    assert [(step.spans, step.padding) for step in schedule.steps] == [((Span(0, 0, 2),), 1)]


def test_a_hit_of_the_cache_is_a_copy() -> None:
    """Of the first sequence that has computed these tokens by then, wherever its columns begin."""
    ways = [way([("a", 0, A[:3])]), way([("a", 3, A[3:])]), way([("c", 3, C[3:])])]
    schedule = OnGrid(ways, *grid(C, A)).schedule([True] * 3)
    assert schedule is not None
    *before, last = schedule.steps
    assert [(step.spans, step.copies) for step in before] == [((Span(1, 0, 3),), ()), ((Span(1, 3, 5),), ())]
    assert (last.spans, last.copies) == ((Span(0, 4, 5),), (Copy(0, 1, 4, 1, -1),))


@pytest.mark.parametrize("before", [[way([("b", 0, B)])], [way([("a", 0, A[:2])])]], ids=["others", "too few"])
def test_a_hit_of_tokens_that_nobody_computed_has_no_schedule(before: list[Pass]) -> None:
    """The cache was filled before the capture: rows have their places all the same."""
    requests = OnGrid([*before, way([("c", 3, C[3:])])], *grid(A, B, C))
    assert requests.schedule([True] * (len(before) + 1)) is None
    assert requests.indices()[-1].tolist() == [14]


def rows_of(ids: list[list[int]], *sequences: tuple[list[int], int]) -> Pass:
    """A pass of these ids: of each sequence the flat places of its tokens, and how many lie before these."""
    flat = [token for row in ids for token in row]
    parts = (
        Part(ids=tuple(flat[place] for place in places), places=tuple(places), start=start)
        for places, start in sequences
    )
    return torch.tensor(ids), Tokens((len(ids), len(ids[0])), tuple(parts))


ALIKE = grid([1, 2, 3], [4, 5, 6])


def test_beginnings_behind_each_other_are_a_pack() -> None:
    """Also where two sequences fill their rows, so that no number is left out between them."""
    packed = rows_of([[1, 2, 3, 4, 5, 6]], ([0, 1, 2], 0), ([3, 4, 5], 0))
    schedule = OnGrid([packed], *ALIKE).schedule([False])
    assert schedule is not None
    assert [(step.shape, step.phase, step.spans, step.scored) for step in schedule.steps] == [
        ("packed", "forward", (Span(0, 0, 3), Span(1, 0, 3)), None)
    ]
    assert OnGrid([packed], *ALIKE).schedule([True]) is None, "a head does not take one token of each in a pack"


@pytest.mark.parametrize(
    "ways",
    [
        [rows_of([[1, 2, 4, 5]], ([0, 1], 0), ([2, 3], 0)), rows_of([[3, 6]], ([0], 2), ([1], 2))],
        [rows_of([[1, 2, 3, 4, 5, 6, 0]], ([0, 1, 2], 0), ([3, 4, 5], 0))],
        [rows_of([[1, 2, 3, 4, 5, 6]] * 2, ([0, 1, 2], 0), ([3, 4, 5], 0))],
    ],
    ids=["parts that go on", "with padding", "several packs"],
)
def test_what_is_no_pack_of_beginnings_has_no_schedule(ways: list[Pass]) -> None:
    assert OnGrid(ways, *ALIKE).schedule([False] * len(ways)) is None


def test_sequences_below_each_other_are_a_rectangle() -> None:
    """It may end in padding where the grid ends too; what goes on reads a cache."""
    ids, mask = torch.tensor([[1, 2, 3], [4, 5, 0]]), torch.tensor([[True] * 3, [True, True, False]])
    prompt, step = rows_of([[1, 2], [4, 5]], ([0, 1], 0), ([2, 3], 0)), rows_of([[3]], ([0], 2))
    schedule = OnGrid([prompt, step], ids, mask).schedule([True, True])
    assert schedule is not None
    assert schedule.positions == "columns"
    assert [(each.shape, each.phase, each.spans, each.scored) for each in schedule.steps] == [
        ("dense", "prefill", (Span(0, 0, 2), Span(1, 0, 2)), (0, 1)),
        ("dense", "decode", (Span(0, 2, 3),), (0,)),
    ]
    whole = rows_of([[1, 2, 3], [4, 5, 9]], ([0, 1, 2], 0), ([3, 4], 0))
    ending = OnGrid([whole], ids, mask).schedule([False])
    assert ending is not None
    assert ending.steps[0].spans == (Span(0, 0, 3), Span(1, 0, 3))
    begun = rows_of([[0, 1, 2, 3]], ([1, 2, 3], 0))
    assert OnGrid([begun], ids, mask).schedule([False]) is None, "padding of its own at the left"
