"""NCCL's channels, protocol and nodes as attributes of an all-reduce, against sums written out by hand, bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from torch import Tensor, stack

from moeparity.ops.attribute import Value
from moeparity.ops.kernels.placement import all_reduce
from moeparity.ops.placement import ALL_REDUCE
from tests.numerics.collectives.data import zero_sum
from tests.ops.plain import FP32, assert_bits

SUM: dict[str, Any] = {"reduce": "now", "sequence": "whole", "output": FP32, "bias": "after"}
TREE = {"collective": "nccl.tree"}


def summed(x: Sequence[Tensor], at: dict[str, Any]) -> Tensor:
    """One sequence of one token."""
    return all_reduce(_stacked(x), w={}, p={}, at=SUM | at).flatten()


def _stacked(x: Sequence[Tensor]) -> Tensor:
    return stack(list(x)).view(1, len(x), 1, -1)


def ring(x: Sequence[Tensor], chunk: int) -> Tensor:
    """The sum of a chunk starts behind its owner and ends there."""
    total = x[(chunk + 1) % len(x)]
    for hop in range(2, len(x) + 1):
        total = total + x[(chunk + hop) % len(x)]
    return total


def test_each_channel_has_chunks_of_its_own() -> None:
    """16389 fp32 on 2 channels are 12288, in chunks of 3072, and 4101, in chunks of ceil(4101 / 4) up to 16 bytes."""
    x = zero_sum(4, 16389, FP32)
    edges = [0, 3072, 6144, 9216, 12288, 13316, 14344, 15372, 16389]
    ours = summed(x, {"collective": "nccl.ring", "channels": 2})
    for i, (first, end) in enumerate(itertools.pairwise(edges)):
        assert_bits(ours[first:end], ring([each[first:end] for each in x], i % 4))
    channel_sum = summed(x, {"collective": "nccl.ring"})
    assert_bits(channel_sum[:4100], ring([each[:4100] for each in x], 0))
    assert not ours.equal(channel_sum)


def test_ll_has_chunks_of_32_kib() -> None:
    """Three full chunks of 8192 fp32 and 21 elements in chunks of 8 + 8 + 5; Simple's is one loop of chunks of 8200."""
    x = zero_sum(3, 3 * 8192 + 21, FP32)
    edges = [0, 8192, 16384, 24576, 24584, 24592, 24597]
    ours = summed(x, {"collective": "nccl.ring", "protocol": "ll"})
    for i, (first, end) in enumerate(itertools.pairwise(edges)):
        assert_bits(ours[first:end], ring([each[first:end] for each in x], i % 3))
    simple = summed(x, {"collective": "nccl.ring"})
    assert_bits(simple[:8200], ring([each[:8200] for each in x], 0))


def test_two_trees_over_three_nodes() -> None:
    """In the first tree node 2 is the child of node 0 and has node 1; in the second all are moved on by one."""
    x = zero_sum(6, 24577, FP32)
    low, high = ([each[part] for each in x] for part in (slice(0, 16384), slice(16384, None)))
    ours = summed(x, {**TREE, "node": 2, "channels": 2})
    assert_bits(ours[:16384], (low[0] + low[1]) + (low[4] + (low[5] + (low[2] + low[3]))))
    assert_bits(ours[16384:], (high[2] + high[3]) + (high[0] + (high[1] + (high[4] + high[5]))))


@pytest.mark.parametrize("pattern", ["balanced_tree", "split_tree", "tree"])
def test_patterns(pattern: str) -> None:
    x = zero_sum(6, 501, FP32)
    ours = summed(x, {**TREE, "node": 2, "pattern": pattern})
    node2 = (x[4] + x[5]) + (x[2] + x[3]) if pattern == "tree" else x[4] + (x[5] + (x[2] + x[3]))
    assert_bits(ours, x[0] + (x[1] + node2) if pattern == "split_tree" else (x[0] + x[1]) + node2)


def test_nodes_of_one_rank_and_one_node() -> None:
    x = zero_sum(4, 501, FP32)
    assert_bits(summed(x, {**TREE, "node": 1}), x[0] + ((x[2] + x[1]) + x[3]))
    chain = x[0] + (x[1] + (x[2] + x[3]))
    assert_bits(summed(x, {**TREE, "node": 0, "channels": 8}), chain)
    assert_bits(summed(x, TREE), chain)


def test_ranks_that_nodes_do_not_share_evenly_are_refused() -> None:
    assert ALL_REDUCE.refusals.values is not None
    values: dict[str, Value] = {"reduce": "now", "sequence": "whole", "message": "bf16", **TREE, "node": 4}
    assert ALL_REDUCE.refusals.values({"partials of x": (8,)}, values) is None
    refusal = ALL_REDUCE.refusals.values({"partials of x": (6,)}, values)
    assert refusal == ("node", "6 ranks do not divide by 4 on each node.")
