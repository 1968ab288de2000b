"""Of which tokens other bits are, and whose experts they went to."""

from __future__ import annotations

import torch

from moeparity.evidence.explain.extent import _Counted
from moeparity.evidence.explain.report import ExpertTokens, TokenPlace
from moeparity.evidence.explain.sample import Sample

IDS = torch.tensor([[[0, 1], [1, 2], [2, 3], [3, 0]], [[1, 3], [0, 2], [2, 0], [3, 2]]])


def step(number: int, real: torch.Tensor | None = None) -> Sample:
    return Sample(values={}, results=(), number=number, real=None if real is None else (real, 1))


def counted(*tokens: tuple[int, int]) -> _Counted:
    """Of the tokens at these places the bits are other ones, in the second of two micro-batches."""
    extent, differs = _Counted(), torch.zeros(IDS.shape[:2], dtype=torch.bool)
    extent.add(differs, IDS, step(0))
    for place in tokens:
        differs[place] = True
    extent.add(differs, IDS, step(1))
    return extent


def test_an_expert_is_told_whose_tokens_all_are() -> None:
    extent = counted((0, 0), (0, 1), (1, 0))
    assert (extent.differing, extent.tokens) == (3, 16)
    assert extent.first == TokenPlace(forward=1, sequence=0, position=0)
    assert extent.experts == (ExpertTokens(expert=1, differing=3, tokens=6),)


def test_of_one_token_both_experts_may_be_why() -> None:
    assert counted((0, 2)).experts == (
        ExpertTokens(expert=2, differing=1, tokens=10),
        ExpertTokens(expert=3, differing=1, tokens=8),
    )


def test_no_expert_is_told_where_none_has_all_tokens_or_all_tokens_differ() -> None:
    assert counted((0, 0), (0, 2)).experts == ()
    assert counted().experts == ()
    every = _Counted()
    every.add(torch.ones(1, 2, dtype=torch.bool), torch.tensor([[[0], [0]]]), step(0))
    assert every.experts == ()
    assert every.first == TokenPlace(forward=0, sequence=0, position=0)


def test_of_experts_with_all_tokens_those_without_others_are_told() -> None:
    ids = torch.tensor([[[0, 1], [0, 1], [1, 2]]])
    extent = _Counted()
    extent.add(torch.tensor([[True, True, False]]), ids, step(0))
    assert extent.experts == (ExpertTokens(expert=0, differing=2, tokens=2),)


def test_the_place_of_a_token_counts_the_padding_before_it() -> None:
    extent, real = _Counted(), torch.tensor([[True, True, False], [False, False, True]])
    extent.add(torch.tensor([[False, False, True]]), None, step(3, real))
    assert extent.first == TokenPlace(forward=3, sequence=1, position=2)
    assert extent.tokens == 3
