"""`preference`: logits of two outcomes for each pair, held to a loop over pairs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from moeparity.numerics.bits import same_bits
from moeparity.ops.kernels.preference import last_tokens, preference
from moeparity.ops.preference import CHOSEN

NAN = float("nan")


def one_by_one(score: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The same, with Python's numbers, of which one difference of fp32 or bf16 scores is exact."""
    logits = torch.zeros(*mask.shape, 2, dtype=dtype)
    for chosen in range(0, len(mask), 2):
        ends = [max(t for t, real in enumerate(mask[row].tolist()) if real) for row in (chosen, chosen + 1)]
        difference = float(score[chosen, ends[0], 0]) - float(score[chosen + 1, ends[1], 0])
        if ends[0] > 0:
            logits[chosen, ends[0] - 1, CHOSEN] = torch.tensor(difference, dtype=torch.float64).to(dtype)
    return logits


@pytest.mark.parametrize("score_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_it_is_the_loop_over_pairs(score_dtype: torch.dtype, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    score = torch.randn(6, 5, 1, generator=generator).to(score_dtype)
    columns = torch.arange(5)
    # Padded on the right, on the left, at both ends; a chosen sequence of one token, at the first place and at the
    # last.
    mask = torch.stack([columns < 3, columns > 1, (columns > 0) & (columns < 4), columns < 1, columns > 3, columns < 5])
    ours = preference(score, mask, w={}, p={}, at={"difference": dtype})
    assert same_bits(ours, one_by_one(score, mask, dtype))
    assert int((ours != 0).sum()) == 3


def test_rows_of_other_tokens_and_of_rejected_sequences_are_zero() -> None:
    score, mask = torch.ones(2, 4, 1) * torch.tensor([2.0, -1.0])[:, None, None], torch.ones(2, 4, dtype=torch.bool)
    logits = preference(score, mask, w={}, p={}, at={"difference": torch.float32})
    assert logits[0, 2].tolist() == [3.0, 0.0]
    assert logits.count_nonzero() == 1
    loss = -float(logits[0, 2].double().log_softmax(-1)[CHOSEN])
    assert loss == pytest.approx(math.log1p(math.exp(-3.0)), rel=1e-15)


def test_what_is_not_finite_stays_so_and_touches_no_other_pair() -> None:
    score, mask = torch.zeros(4, 3, 1), torch.ones(4, 3, dtype=torch.bool)
    score[1, 2], score[2, 2], score[3, 2] = NAN, float("inf"), float("inf")
    score[0, 0] = NAN  # not its last token
    logits = preference(score, mask, w={}, p={}, at={"difference": torch.float32})
    assert logits.isnan().nonzero().tolist() == [[0, 1, CHOSEN], [2, 1, CHOSEN]]


def test_the_last_real_token() -> None:
    mask = torch.tensor([[1, 1, 0], [0, 1, 1], [0, 1, 0], [1, 0, 0]], dtype=torch.bool)
    assert last_tokens(mask).tolist() == [1, 2, 1, 0]
