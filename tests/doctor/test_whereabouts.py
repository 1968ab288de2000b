"""Where a difference lies, of cases made by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from moeparity.doctor.judge import Difference
from moeparity.doctor.whereabouts import whereabouts


def case(d: torch.Tensor, ids: torch.Tensor) -> Any:
    """Sequences of which all tokens but the first are scored."""
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[:, 0] = False
    return SimpleNamespace(
        difference=Difference(d=d[mask], sequence=mask.nonzero()[:, 0]),
        mask=torch.ones(int(mask.sum()), dtype=torch.bool),
        bench=SimpleNamespace(tokens=SimpleNamespace(loss_mask=mask, input_ids=ids)),
    )


def test_the_part_of_the_sequences_is_told() -> None:
    d = torch.zeros(4, 31, dtype=torch.float64)
    d[:, 21:] = 1.0
    ids = torch.arange(4 * 31).view(4, 31)
    (thirds,) = whereabouts(case(d, ids))
    assert thirds.startswith("0%, 0% and 100% of the squared differences")
    assert whereabouts(case(torch.zeros_like(d), ids)) == ()


def test_few_token_ids_that_carry_it_are_named() -> None:
    d, ids = torch.zeros(4, 31, dtype=torch.float64), torch.arange(4 * 31).view(4, 31) % 40
    d[ids == 7] = 1.0
    assert "at the token ids 7, of 40 that are scored" in whereabouts(case(d, ids))[1]
