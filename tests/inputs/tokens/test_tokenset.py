"""Which attention masks are padding, and which tokens of padded sequences are scored."""

from __future__ import annotations

import itertools

import pytest
import torch

from moeparity.inputs.tokens.tokenset import defect, scored_mask


@pytest.mark.parametrize("row", list(itertools.product([False, True], repeat=5)), ids=str)
def test_padding_is_at_the_ends(row: tuple[bool, ...]) -> None:
    """All rows of five tokens, with a good row before them: by their runs of equal values."""
    runs = [value for value, _ in itertools.groupby(row)]
    reason = defect(torch.tensor([[True] * 5, list(row)]))
    if runs == [False]:
        assert reason == "sequence 1 is padding only; leave it out"
    elif runs.count(True) == 1:
        assert reason is None
    else:
        assert reason is not None
        assert reason.startswith("sequence 1 has zeros between its tokens")


def test_a_single_column() -> None:
    assert defect(torch.tensor([[True], [True]])) is None
    assert defect(torch.tensor([[True], [False]])) is not None


def test_padding_and_the_first_token_after_it_are_not_scored() -> None:
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    loss = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 0, 1]]).bool()
    scorable = scored_mask(loss, mask)
    assert scorable.tolist() == torch.tensor([[0, 0, 0, 1, 1], [1, 1, 1, 0, 0], [0, 1, 1, 0, 1]]).bool().tolist()
    assert loss[0].all(), "what was given stays as it is"
