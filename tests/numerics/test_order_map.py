"""Order maps: how they cut, print and explain themselves."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeparity.numerics.collectives import gloo, mpi, nccl
from moeparity.numerics.collectives import inference_engines as engines
from moeparity.numerics.order_map import (
    ASCENDING,
    Message,
    OrderMap,
    Partition,
    PerDestination,
    Rotation,
    Whole,
)
from moeparity.numerics.orders import parse

RING = OrderMap(gloo.GlooSegments(), Rotation(-1, -1), "io")


def test_explain_writes_the_order_of_each_part_as_a_profile_does() -> None:
    message = Message(11, 2, 4)
    assert RING.explain(message).splitlines() == [
        "[0, 4)   tree(3+2+1+0)",
        "[4, 8)   tree(0+3+2+1)",
        "[8, 11)  tree(1+0+3+2)",
    ]
    assert RING.explain(Message(0, 2, 4)) == ""
    tree_map = nccl.tree_all_reduce(nodes=((0, 1), (2, 3), (4, 5))).order_map
    assert tree_map.explain(Message(3, 2, 6)) == "[0, 3)  tree(0+1+(4+(5+(2+3))))"
    assert parse("tree(0+1+(4+(5+(2+3))))").leaves == 6


def test_a_map_prints_what_it_rounds_and_where_it_starts() -> None:
    text = str(OrderMap(PerDestination(Whole()), ASCENDING, "fp32", "fp32", from_zero=True))
    assert text == "per_destination(whole) | ascending | each add rounded to fp32, result in fp32, from +0"
    rings = Rotation(1, 1, rings=((0, 2, 1),))
    assert str(OrderMap(Whole(), rings, "io", inputs="negative_to_positive")) == (
        "whole | rotate(+1, +1, rings [[0, 2, 1]]) | each add rounded to io, inputs negative_to_positive"
    )


def test_tokens() -> None:
    assert Message(12, 2, 2, width=4).tokens == 3
    with pytest.raises(ValueError, match="no whole number of tokens"):
        _ = Message(12, 2, 2, width=5).tokens


PARTITIONS: list[Partition] = [
    Whole(),
    gloo.GlooSegments(),
    mpi.MpiBlocks(),
    engines.Packs16(),
    *[
        nccl.NcclRingChunks(nccl.NcclChannels(channels, existing, protocol))
        for channels, existing in ((1, None), (2, None), (3, 8), (8, 8))
        for protocol in ("simple", "ll", "ll128")
    ],
]


@settings(max_examples=60)
@given(
    partition=st.sampled_from(PARTITIONS),
    packs=st.one_of(st.integers(2, 400), st.integers(10_000, 3_000_000)),
    itemsize=st.sampled_from([2, 4]),
    ranks=st.integers(1, 8),
)
def test_parts_cover_every_element_once(partition: Partition, packs: int, itemsize: int, ranks: int) -> None:
    message = Message(packs * 16 // itemsize, itemsize, ranks)
    parts = partition.parts(message)
    assert parts[0].start == 0
    assert parts[-1].stop == message.elements
    assert all(left.stop == right.start for left, right in pairwise(parts))
    assert all(part.start < part.stop and 0 <= part.owner < ranks for part in parts if partition != Whole())
    assert len({part.channel for part in parts}) <= 8
