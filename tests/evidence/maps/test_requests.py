"""Flat batches of a server's requests, laid on a grid: which sequence each run is, its rows, and the schedule."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from moeparity.evidence.maps.forwards import Forward
from moeparity.evidence.maps.placing import NOWHERE
from moeparity.evidence.maps.requests import Part, Requests, parts_of
from moeparity.evidence.trace.records import Batch
from moeparity.plan.schedule.steps import Copy, Span

Rows = Sequence[tuple[str, int, list[int]]]
"""Of a step each request, the position of its first token, and its tokens."""
A, B, C = [1, 2, 3, 4, 5], [6, 7], [1, 2, 3, 9]


def way(rows: Rows, padding: int = 0) -> Forward:
    """A forward of these rows in this order; rows that pad hold the token 0."""
    requests, starts, tokens = zip(*rows, strict=True)
    ids = torch.tensor([[token for each in tokens for token in each] + [0] * padding])
    lengths = tuple(map(len, tokens))
    return Forward(
        ids, True, {}, batch=Batch(step=1, requests=requests, starts=starts, tokens=lengths, padding=padding)
    )


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


def test_parts_go_on_where_their_run_ended() -> None:
    assert parts_of(CHUNKED) == [
        (Part(0, 0, 0, 1, "b"), Part(1, 0, 1, 2, "a")),
        (Part(1, 2, 0, 2, "a"), Part(0, 1, 2, 1, "b")),
        (Part(1, 4, 0, 1, "a"),),
    ]


def test_a_request_that_begins_anew_is_another_run() -> None:
    """One that was preempted starts over, under its old name."""
    ways = [way([("a", 0, A[:3])]), way([("a", 0, A[:4])]), way([("a", 4, A[4:])])]
    assert [[part.run for part in parts] for parts in parts_of(ways)] == [[0], [1], [1]]


def test_rows_are_tokens_of_the_sequences_with_the_same_tokens() -> None:
    """By token, whatever the order of rows; rows that pad are of none. The grid pads at the left."""
    requests = Requests(CHUNKED, *grid(A, B))
    assert [index.tolist() for index in requests.indices()] == [[8, 0, 1], [2, 3, 9, NOWHERE, NOWHERE], [4]]


def test_the_steps_are_those_of_a_schedule() -> None:
    schedule = Requests(CHUNKED, *grid(A, B)).schedule()
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
    requests = Requests([way([("a", 0, [6])])], *grid([6]))
    schedule = requests.schedule()
    assert schedule is not None
    (step,) = schedule.steps
    assert (step.spans, step.phase) == ((Span(0, 0, 1),), "prefill")
    assert [index.tolist() for index in requests.indices()] == [[0]]


def test_requests_with_the_same_tokens_are_different_sequences() -> None:
    requests = Requests([way([("a", 0, B), ("b", 0, B)])], *grid(B, B))
    assert [index.tolist() for index in requests.indices()] == [[0, 1, 2, 3]]


def test_a_request_that_the_grid_has_not_is_padding() -> None:
    requests = Requests([way([("other", 0, [8, 8]), ("b", 0, B)])], *grid(A, B))
    schedule = requests.schedule()
    assert [index.tolist() for index in requests.indices()] == [[NOWHERE, NOWHERE, 8, 9]]
    assert schedule is not None
    (step,) = schedule.steps
    assert (step.spans, step.padding, step.scored) == ((Span(1, 3, 5),), 2, (0,))


def test_tokens_behind_the_end_of_a_sequence_are_padding() -> None:
    """As the last drawn token, which nobody asked for."""
    requests = Requests([way([("b", 0, [*B, 9])])], *grid(B))
    schedule = requests.schedule()
    assert [index.tolist() for index in requests.indices()] == [[0, 1, NOWHERE]]
    assert schedule is not None
    assert [(step.spans, step.padding) for step in schedule.steps] == [((Span(0, 0, 2),), 1)]


def test_a_hit_of_the_cache_is_a_copy() -> None:
    """Of the first sequence that has computed these tokens by then, wherever its columns begin."""
    ways = [way([("a", 0, A[:3])]), way([("a", 3, A[3:])]), way([("c", 3, C[3:])])]
    schedule = Requests(ways, *grid(C, A)).schedule()
    assert schedule is not None
    *before, last = schedule.steps
    assert [(step.spans, step.copies) for step in before] == [((Span(1, 0, 3),), ()), ((Span(1, 3, 5),), ())]
    assert (last.spans, last.copies) == ((Span(0, 4, 5),), (Copy(0, 1, 4, 1, -1),))


@pytest.mark.parametrize("before", [[way([("b", 0, B)])], [way([("a", 0, A[:2])])]], ids=["others", "too few"])
def test_a_hit_of_tokens_that_nobody_computed_has_no_schedule(before: list[Forward]) -> None:
    """The cache was filled before the capture: rows have their places all the same."""
    requests = Requests([*before, way([("c", 3, C[3:])])], *grid(A, B, C))
    assert requests.schedule() is None
    assert requests.indices()[-1].tolist() == [14]
