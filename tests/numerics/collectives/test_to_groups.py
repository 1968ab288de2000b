"""Whether groups that attend apart get the same bits by a reduce-scatter as out of an all-reduce of all rows."""

from __future__ import annotations

import pytest
import torch

from moeparity.numerics.bits import same_bits
from moeparity.numerics.collectives import gloo, nccl
from moeparity.numerics.collectives.declaration import Collective
from tests.numerics.collectives.data import zero_sum
from tests.numerics.collectives.to_groups import WAYS, WIDTH, rows_of


def unequal(collective: Collective, way: str, world: int, dtype: torch.dtype, *, even: bool) -> float:
    """The share of the elements that are others than those out of an all-reduce of all rows."""
    rows = rows_of(world, even=even)
    inputs = [x.view(-1, WIDTH) for x in zero_sum(world, sum(rows) * WIDTH, dtype, seed=world)]
    ours, theirs = (torch.cat(WAYS[name](collective, inputs, rows)) for name in (way, "sliced"))
    assert same_bits(ours, theirs) == (not bool((ours != theirs).any()))
    return float((ours != theirs).float().mean())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_ranks_have_one_sum(dtype: torch.dtype) -> None:
    for even in (True, False):
        assert unequal(nccl.RING, "padded", 2, dtype, even=even) == 0
        for way in WAYS:
            assert unequal(gloo.ALL_REDUCE, way, 2, dtype, even=even) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("world", [4, 8])
def test_of_more_ranks_it_goes_by_the_library_and_the_rows(world: int, dtype: torch.dtype) -> None:
    """gloo's reduce-scatter of a tensor is an all-reduce of which a part is kept: it has other bits only where rows are
    filled up, which moves the ends of its segments. So has NCCL's ring, of messages of one chunk for each rank.
    """
    assert unequal(gloo.ALL_REDUCE, "padded", world, dtype, even=True) == 0
    assert unequal(nccl.RING, "padded", world, dtype, even=True) == 0
    for collective, way, even in (
        (gloo.ALL_REDUCE, "padded", False),
        (gloo.ALL_REDUCE, "reduced", True),
        (gloo.ALL_REDUCE, "reduced", False),
        (nccl.RING, "padded", False),
    ):
        assert unequal(collective, way, world, dtype, even=even) > 0.1, (collective.name, way, even)


def test_rows_that_fill_up_are_nobodys() -> None:
    rows = rows_of(3, even=False)
    inputs = [torch.ones(sum(rows), WIDTH) * 10**rank for rank in range(3)]
    for name, way in WAYS.items():
        shares = way(gloo.ALL_REDUCE, inputs, rows)
        assert [len(share) for share in shares] == [3, 4, 5], name
        assert all(bool((share == 111).all()) for share in shares), name
