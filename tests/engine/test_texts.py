"""What a kernel is told of the tokens before its rows."""

from __future__ import annotations

import torch

from moeparity.engine.batch import Batches
from moeparity.engine.texts import Texts
from moeparity.plan.schedule.steps import Span

TOKENS = torch.tensor([[9, 1, 2, 3], [4, 5, 6, 7]])
MASK = torch.tensor([[False, True, True, True], [True, True, True, True]])


def places(rows: torch.Tensor) -> list[list[int]]:
    return [row.nonzero().flatten().tolist() for row in rows.flatten(0, 1)]


def test_the_text_ends_with_the_rows_own_token() -> None:
    batch = Batches(2, 4).batch((Span(0, 1, 3), Span(1, 3, 4)), "flat")
    text = Texts(tokens=TOKENS, mask=MASK, prompts=(1, 3)).before(batch, 0)
    assert text.ids.tolist() == [[TOKENS[0].tolist(), TOKENS[0].tolist(), TOKENS[1].tolist()]]
    assert places(text.before) == [[1], [1, 2], [0, 1, 2, 3]]
    assert text.output is not None
    assert places(text.output) == [[], [2], [3]]


def test_nothing_stands_before_rows_of_padding() -> None:
    text = Texts(tokens=TOKENS, mask=MASK, prompts=()).before(Batches(2, 4).rectangle(0, 2, 2, 4), 2)
    assert text.ids.shape == text.before.shape == (2, 4, 4)
    assert places(text.before) == [[1, 2], [1, 2, 3], [], [], [0, 1, 2], [0, 1, 2, 3], [], []]


def test_which_tokens_are_prompt_may_not_be_known() -> None:
    assert Texts(tokens=TOKENS, mask=MASK, prompts=()).before(Batches(2, 4).whole((0, 2)), 0).output is None
