"""The grid of a token set."""

from __future__ import annotations

import torch

from moeparity.inputs.tokens.grid import token_grid
from moeparity.inputs.tokens.tokenset import TokenSet
from moeparity.plan.schedule.token_grid import TokenGrid

ATTENTION = torch.tensor([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1], [1, 1, 1, 1, 1]], dtype=torch.bool)
# Scored from the third token on; from the last; nowhere.
LOSS = torch.tensor([[0, 0, 1, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]], dtype=torch.bool)
TOKENS = TokenSet(input_ids=torch.arange(15).reshape(3, 5), loss_mask=LOSS, attention_mask=ATTENTION)


def test_spans_and_prompts() -> None:
    assert token_grid(TOKENS, with_ids=False) == TokenGrid(spans=((0, 4), (1, 5), (0, 5)), prompts=(2, 3, 5), length=5)


def test_ids() -> None:
    assert token_grid(TOKENS, with_ids=True).ids == ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9), (10, 11, 12, 13, 14))
