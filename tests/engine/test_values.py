"""Identities go by raw bits, however many values a port has had before."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from moeparity.engine import values
from moeparity.engine.batch import Batch
from moeparity.engine.grid import Grid
from moeparity.engine.values import Identities
from moeparity.plan.schedule.steps import MicroBatches

SEQUENCES, LENGTH = 4, 3


def batches() -> list[Batch]:
    """All tokens at once, each half, and each sequence: cells are sequences."""
    grid = Grid(SEQUENCES, LENGTH, [MicroBatches(size) for size in (4, 2, 1)])
    return [grid.rectangle(a, b, 0, LENGTH) for a, b in ((0, 4), (0, 2), (2, 4), (0, 1), (1, 2), (2, 3), (3, 4))]


def drawn(seed: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Few different numbers, so that rows repeat: zeros of both signs, NaN and 1."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.tensor([0.0, -0.0, torch.nan, 1.0], dtype=dtype)
    rows = numbers[torch.randint(0, 4, (SEQUENCES, LENGTH, 1), generator=generator)]
    return rows.expand(-1, -1, width).contiguous()


def raw(rows: torch.Tensor) -> bytes:
    return rows.contiguous().view(torch.uint8).numpy().tobytes()


# Rows of whole 8-byte words and of others, and tensors that lie in another order or begin at an odd place.
@pytest.mark.parametrize("collide", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 3, 4])
def test_equal_bits_and_no_others_have_one_number(
    monkeypatch: pytest.MonkeyPatch, width: int, dtype: torch.dtype, *, collide: bool
) -> None:
    if collide:
        # All fingerprints are 0: they decide what is compared, never what is equal.
        monkeypatch.setattr(values, "odd_numbers", lambda count, *_: torch.zeros(count, dtype=torch.int64))
    identities, number_of, distinct = Identities(), dict[tuple[int, bytes], int](), 0
    for seed in range(12):
        for batch in batches():
            first, last = batch.rows
            tensor = drawn(seed % 9, width, dtype)[first:last]
            if seed % 3 == 1:
                tensor = tensor.transpose(1, 2).contiguous().transpose(1, 2)
            if seed % 3 == 2:
                tensor = torch.cat([tensor.new_ones(1), tensor.flatten()])[1:].view(tensor.shape)
            block = identities.block(tensor, batch)
            for sequence, number in zip(range(first, last), block.ids, strict=True):
                key = sequence, raw(tensor[sequence - first])
                assert number_of.setdefault(key, number) == number
    for sequence in range(SEQUENCES):
        numbers = [number for (cell, _), number in number_of.items() if cell == sequence]
        distinct += len(numbers)
        assert len({*numbers}) == len(numbers)
    assert distinct > 20


def test_what_has_other_fingerprints_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared, take_equal = [], values._take_equal

    def counted(*operands: Any) -> None:
        compared.append(operands)
        take_equal(*operands)

    monkeypatch.setattr(values, "_take_equal", counted)
    identities, whole = Identities(), batches()[0]
    tensors = [torch.randn(SEQUENCES, LENGTH, 8, generator=torch.Generator().manual_seed(i)) for i in range(30)]
    for tensor in tensors:
        assert len({*identities.block(tensor, whole).ids}) == 1
    assert len(compared) < 10
    for number, tensor in enumerate(tensors):
        assert identities.block(tensor.clone(), whole).ids == (number,) * SEQUENCES
    assert len(compared) < 10 + len(tensors)
