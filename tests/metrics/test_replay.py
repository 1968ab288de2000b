"""Recorded routes at other places, and none for some tokens: which experts each token is sent to."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from moeparity.metrics.replay import Replay, displaced, incomplete, leading_dense, replayed

REAL = torch.tensor([[True] * 4, [False, False, True, True]])
ROUTES = torch.arange(16).view(2, 4, 2, 1).where(REAL[..., None, None], -1)
"""A sequence of four tokens, and one of two with two pads before it; two layers, one expert a token."""


@pytest.mark.parametrize(
    ("replay", "rows"),
    [
        ({}, [[0, 1, 2, 3, 4, 5, 6, 7], [-1, -1, -1, -1, 12, 13, 14, 15]]),
        ({"tokens": -1}, [[-1, -1, 0, 1, 2, 3, 4, 5], [-1, -1, -1, -1, -1, -1, 12, 13]]),
        ({"tokens": -1, "instead": "zeros"}, [[0, 0, 0, 1, 2, 3, 4, 5], [-1, -1, -1, -1, 0, 0, 12, 13]]),
        ({"layers": 1}, [[1, -1, 3, -1, 5, -1, 7, -1], [-1, -1, -1, -1, 13, -1, 15, -1]]),
        ({"layers": -1, "instead": "zeros"}, [[0, 0, 0, 2, 0, 4, 0, 6], [-1, -1, -1, -1, 0, 12, 0, 14]]),
        ({"pads": -1}, [[0, 1, 2, 3, 4, 5, 6, 7], [-1] * 8]),
        ({"without": "prompt"}, [[-1, -1, -1, -1, -1, -1, 6, 7], [-1, -1, -1, -1, -1, -1, 14, 15]]),
        ({"without": "prompt", "instead": "zeros"}, [[0, 0, 0, 0, 0, 0, 6, 7], [-1, -1, -1, -1, 0, 0, 14, 15]]),
        ({"without": "end", "length": 1}, [[0, 1, -1, -1, -1, -1, -1, -1], [-1, -1, -1, -1, 12, 13, -1, -1]]),
    ],
    ids=str,
)
def test_routes_are_moved_and_left_out(replay: dict[str, Any], rows: list[list[int]]) -> None:
    assert replayed(ROUTES, REAL, (3, 1), Replay(**replay)).flatten(1).tolist() == rows


def test_what_was_not_recorded_is_filled_too() -> None:
    routes = torch.tensor([[[[5, 3]], [[-1, -1]], [[2, 7]]]])
    real = torch.ones(1, 3, dtype=torch.bool)
    assert replayed(routes, real, (1,), Replay(instead="zeros")).flatten(1).tolist() == [[5, 3, 0, 0, 2, 7]]
    assert replayed(routes, real, (1,), Replay(instead="range")).flatten(1).tolist() == [[5, 3, 0, 1, 2, 7]]
    assert replayed(routes, real, (1,), Replay()).flatten(1).tolist() == [[5, 3, -1, -1, 2, 7]]


def test_traps_are_those_that_the_tokens_and_the_model_can_have() -> None:
    assert [trap.name for trap in displaced(layers=1, pads=False)] == ["1 token before", "1 token behind"]
    names = [trap.name for trap in displaced(layers=2, pads=True, furthest=2)]
    assert names[2:] == [
        "2 tokens before",
        "2 tokens behind",
        "the layer before",
        "the layer behind",
        "rows padded on the left",
        "rows padded on the right",
    ]
    assert [trap.name for trap in incomplete(dense=0, prompts=False, lengths=())] == ["own weights by slot"]
    assert [trap.name for trap in incomplete(dense=3, prompts=True, lengths=(8,), gaps=True)] == [
        "own weights by slot",
        "dense layers counted",
        "no route as expert 0",
        "no route as the first experts",
        "prompts as expert 0",
        "prompts as the first experts",
        "prompts as own choices",
        "expert 0 behind token 8",
        "own choices behind token 8",
    ]
    every = [*displaced(layers=4, pads=True, furthest=2), *incomplete(dense=3, prompts=True, lengths=(4, 8), gaps=True)]
    assert len({trap.replay for trap in every}) == len({trap.name for trap in every}) == len(every)


def test_dense_layers_that_come_first_are_counted() -> None:
    assert [leading_dense(routed) for routed in ([0, 1, 2], [3, 4, 5], [1], [1, 3, 5])] == [0, 3, 1, 0]
