"""Recorded data against a side's own, on numbers small enough to evaluate here."""

from __future__ import annotations

import math

import pytest
import torch

from moeparity.bisection.record.observe import chosen_logprobs, same_sets
from moeparity.metrics import tokens as scored_tokens


@pytest.mark.parametrize("chunk", [1, 7, 1 << 19])
def test_logprobs_of_the_chosen_tokens(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(scored_tokens, "CHUNK", chunk)
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(2, 4, 5, generator=generator) * 3).to(torch.bfloat16)
    ids = torch.randint(0, 5, (2, 4), generator=generator)
    where = torch.tensor([[0, 1, 0, 1], [0, 0, 1, 0]], dtype=torch.bool)
    chosen = chosen_logprobs(logits, ids, where)
    assert chosen.dtype == torch.float64
    for value, (row, at) in zip(chosen.tolist(), [(0, 1), (0, 3), (1, 2)], strict=True):
        before = [float(x) for x in logits[row, at - 1]]
        expected = before[int(ids[row, at])] - math.log(math.fsum(math.exp(x) for x in before))
        assert math.isclose(value, expected, rel_tol=1e-12)


def test_no_chosen_token_is_no_number() -> None:
    nowhere = torch.zeros(1, 3, dtype=torch.bool)
    assert chosen_logprobs(torch.zeros(1, 3, 5), torch.zeros(1, 3, dtype=torch.int64), nowhere).shape == (0,)


def test_sets_are_compared_without_their_order() -> None:
    recorded = torch.tensor([[0, 1], [2, 3], [-1, -1], [0, 2]])
    own_ids = torch.tensor([[1, 0], [2, 3], [0, 1], [0, 3]])
    assert same_sets(recorded, own_ids).tolist() == [True, True, False, False]
