"""The order in which a Triton kernel adds a row in blocks of 1024, against its threads, lanes and warps written out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from moeparity.errors import Where
from moeparity.numerics.orders import parse
from moeparity.numerics.summation import sum_axis
from moeparity.plan.engine_profile import load_profile

BLOCK, WARPS, LANES, VECTOR = 1024, 4, 32, 8
HERE = Where(Path(__file__))


def order(profile: str) -> str:
    """What a profile states of the sum of exponentials; the last rule of the file wins."""
    rules = [rule for layer in load_profile(profile, HERE).layers for rule in layer if rule.op == "log_probs"]
    return next(str(dict(rule.values)["order"]) for rule in reversed(rules) if "order" in dict(rule.values))


def halves(x: np.ndarray) -> np.ndarray:
    """The last axis folded, half onto half, to one value."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x[..., 0]


def in_blocks(row: np.ndarray) -> np.float32:
    """As PTX of Triton 3.8.0 for sm_90 reads: a thread's eight neighbours in pairs, then lanes 16 apart, then warps."""
    row_with_pads = np.concatenate([row, np.zeros(-len(row) % BLOCK, np.float32)])
    threads = row_with_pads.reshape(-1, WARPS, LANES, VECTOR)
    for _ in range(3):
        threads = threads[..., ::2] + threads[..., 1::2]
    total = np.float32(0)
    for block in halves(halves(threads[..., 0])):
        total += block
    return total


@pytest.mark.parametrize("vocabulary", [512, 1000, 1024, 5000])
@pytest.mark.parametrize("profile", ["vllm", "sglang-rl-on-policy"])
def test_16_bit_logits_are_added_as_the_kernel_does(profile: str, vocabulary: int) -> None:
    torch.manual_seed(vocabulary)
    exponentials = torch.rand(6, vocabulary)
    result = sum_axis(exponentials, parse(order(profile)), -1, accumulate=torch.float32)
    by_kernel = [in_blocks(row) for row in exponentials.numpy()]
    assert result.numpy().tolist() == [float(value) for value in by_kernel]
    assert result.tolist() != exponentials.sum(-1).tolist()


def in_wide_blocks(row: np.ndarray) -> np.float32:
    """As the PTX of fp32 rows: a thread's four neighbours of each half of a tile in pairs, then half onto half."""
    row_with_pads = np.concatenate([row, np.zeros(-len(row) % BLOCK, np.float32)])
    threads = row_with_pads.reshape(-1, 2, WARPS, LANES, VECTOR // 2)
    for _ in range(2):
        threads = threads[..., ::2] + threads[..., 1::2]
    threads = threads[:, 0, ..., 0] + threads[:, 1, ..., 0]
    total = np.float32(0)
    for block in halves(halves(threads)):
        total += block
    return total


@pytest.mark.parametrize("vocabulary", [512, 1000, 1024, 5000])
@pytest.mark.parametrize("profile", ["vllm-fp32-head", "sglang-deterministic", "torchtitan-batch-invariant"])
def test_fp32_logits_are_added_as_the_kernel_does(profile: str, vocabulary: int) -> None:
    torch.manual_seed(vocabulary)
    exponentials = torch.rand(60, vocabulary)
    result = sum_axis(exponentials, parse(order(profile)), -1, accumulate=torch.float32)
    by_kernel = [in_wide_blocks(row) for row in exponentials.numpy()]
    assert result.numpy().tolist() == [float(value) for value in by_kernel]
    warps_first = parse("fold_lo(4) | fold_hi(256) | sequential")
    assert result.tolist() != sum_axis(exponentials, warps_first, -1, accumulate=torch.float32).tolist()
