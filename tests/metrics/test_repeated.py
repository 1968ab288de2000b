"""Repetitions of a sequence, found by their contents and added up."""

from __future__ import annotations

import torch

from moeparity.metrics.repeated import Repetitions, firsts


def test_each_row_has_the_first_that_is_equal() -> None:
    assert firsts(torch.tensor([7, -3, 7, 7, 5, -3])).tolist() == [0, 1, 0, 0, 4, 1]
    assert firsts(torch.zeros(0, dtype=torch.int64)).tolist() == []


def test_what_is_repeated_is_added_to_the_first_in_the_order_of_the_log() -> None:
    column = torch.tensor([[1.0, 2], [4, 8], [16, 32], [64, 128]], dtype=torch.float64)
    repetitions = Repetitions()
    repetitions.add(torch.tensor([9, 1]))
    assert (repetitions.count, repetitions.merged(column[:2]).tolist()) == (0, [[1, 2], [4, 8]])
    # What was told before is told anew after another chunk.
    repetitions.add(torch.tensor([9, 0]))
    assert repetitions.count == 1
    assert repetitions.different.tolist() == [0, 1, 3]
    assert repetitions.merged(column).tolist() == [[17, 34], [4, 8], [64, 128]]


def test_without_repetitions_nothing_is_touched() -> None:
    column = torch.rand(5, dtype=torch.float64)
    repetitions = Repetitions()
    repetitions.add(torch.tensor([3, 1, 4, 0, 5]))
    assert repetitions.merged(column) is column
