"""Launch rules of kernels fused with an all-reduce, against the kernels' own loops on Python numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from moeparity.numerics.orders import OrderError
from moeparity.ops.norm.fused_launches import fused_launch, mnnvl_launch
from moeparity.ops.norm.launches import Launch
from moeparity.ops.norm.reductions import BY_RANKS, RULES, order_of
from tests.ops.norm.threads import (
    HIGH,
    LOW,
    Row,
    butterfly,
    in_turn,
    ours,
    plus,
    row_of,
    square_added,
    then_added,
    threads,
    twice_by,
    warps,
)
from tests.ops.plain import FP32, assert_bits

Key = tuple[int, int, int]
"""Hidden size, rows, ranks."""


def clustered(row: Row, block: int, cluster: int, step: Callable[[float, float], float] = square_added) -> float:
    """One 16-byte access a thread; a cluster's blocks are added in turn, each by itself."""
    row_threads = threads(row, block * cluster, 8, step)
    return in_turn([twice_by(HIGH, row_threads[i * block : (i + 1) * block]) for i in range(cluster)])


# Launch -> threads of a block, blocks of a cluster, worked out by hand from the launch code for 132 SMs.
ONE_SHOT: dict[Key, tuple[int, int]] = {
    (4096, 1, 1): (128, 4),
    (4096, 33, 1): (128, 4),
    (4096, 34, 1): (256, 2),
    (4096, 66, 1): (256, 2),
    (4096, 67, 1): (512, 1),
    (2880, 1, 1): (180, 2),
    (2880, 67, 1): (360, 1),
    (7168, 20, 1): (224, 4),
    (7168, 40, 1): (448, 2),
    (7168, 500, 1): (896, 1),
    (64, 1, 1): (8, 1),
    (1000, 3, 1): (125, 1),
}
TWO_SHOT: dict[Key, tuple[int, int]] = {
    (4096, 132, 4): (128, 4),
    (4096, 133, 4): (256, 2),
    (2880, 500, 8): (180, 2),
    (2880, 529, 8): (360, 1),
    (7168, 500, 16): (224, 4),
    (1000, 3, 2): (125, 1),
}
MNNVL: dict[Key, tuple[int, int]] = {
    (4096, 1, 1): (64, 8),
    (4096, 16, 1): (64, 8),
    (4096, 17, 1): (128, 4),
    (4096, 34, 1): (256, 2),
    (4096, 67, 1): (512, 1),
    (2880, 1, 1): (90, 4),
    (2880, 40, 1): (180, 2),
    (2880, 67, 1): (360, 1),
    (7168, 16, 1): (112, 8),
    (7168, 20, 1): (224, 4),
    (9216, 1, 1): (144, 8),
    (1000, 3, 1): (125, 1),
    (64, 1, 1): (8, 1),
}
MOE: dict[Key, tuple[int, int]] = {
    (4096, 9, 1): (64, 8),
    (2880, 9, 1): (96, 4),
    (7168, 9, 1): (224, 4),
    (1000, 9, 1): (128, 1),
}
# Launch -> threads of a block, blocks of a cluster, lanes that share a vector: the presets; the defaults elsewhere.
LL: dict[Key, tuple[int, int, int]] = {
    (5120, 3, 4): (128, 5, 1),
    (7168, 3, 8): (128, 7, 1),
    (8192, 3, 8): (128, 8, 1),
    (8192, 3, 16): (64, 16, 1),
    (2880, 3, 16): (128, 8, 1),
    (1000, 3, 4): (128, 8, 1),
}
LL_MOE: dict[Key, tuple[int, int, int]] = {
    (5120, 3, 4): (128, 5, 1),
    (7168, 3, 4): (128, 7, 1),
    (7168, 3, 8): (256, 8, 2),
    (8192, 3, 8): (128, 8, 1),
    (8192, 3, 16): (128, 16, 2),
}
# Launch -> threads of a row.
BT: dict[Key, int] = {
    (7168, 512, 4): 1024,
    (7168, 513, 4): 512,
    (7168, 256, 8): 1024,
    (7168, 257, 8): 448,
    (5120, 600, 8): 1024,
    (2880, 3, 4): 1024,
}
# Where a row has fewer vectors than threads, 896 and 1024 threads are one.
BT_MOE: dict[Key, int] = {(7168, 512, 4): 896, (7168, 513, 4): 512, (7168, 512, 8): 896, (7168, 513, 8): 512}


def vectors(row: Row) -> Row:
    """Sums of the squares of 8 neighbours, each from 0."""
    sums = []
    for first in range(0, len(row), 8):
        total = 0.0
        for x in row[first : first + 8]:
            total = then_added(total, x)
        sums.append(total)
    return sums


def low_latency(row: Row, threads_of: int, cluster: int, lanes: int) -> float:
    """The first of the lanes that share a vector holds its sum; shuffles leave out offsets within such a group."""
    per_vector, groups = vectors(row), threads_of // lanes
    blocks = []
    for block in range(cluster):
        per_thread = [0.0] * threads_of
        for group, value in enumerate(per_vector[block * groups : (block + 1) * groups]):
            per_thread[group * lanes] = value
        of_blocks = []
        for warp in warps(per_thread):
            values = warp
            for offset in (o for o in LOW if o >= lanes):
                values = [plus(values[i], values[i ^ offset]) for i in range(32)]
            of_blocks.append(values[0])
        blocks.append(butterfly(of_blocks, HIGH))
    return in_turn(blocks)


def balanced(row: Row, threads_of: int) -> float:
    per_thread = [0.0] * threads_of
    for fragment, value in enumerate(vectors(row)):
        per_thread[fragment % threads_of] = plus(per_thread[fragment % threads_of], value)
    return twice_by(HIGH, per_thread)


FUSED_KERNELS: dict[str, tuple[Callable[[Row, Key], float], list[Key]]] = {
    "trtllm.all_reduce_rms_norm": (lambda row, at: clustered(row, *ONE_SHOT[at]), list(ONE_SHOT)),
    "trtllm.two_shot_rms_norm": (lambda row, at: clustered(row, *TWO_SHOT[at]), list(TWO_SHOT)),
    "trtllm.moe_all_reduce_rms_norm": (lambda row, at: clustered(row, *MOE[at]), list(MOE)),
    "flashinfer.mnnvl_rms_norm": (lambda row, at: clustered(row, *MNNVL[at], then_added), list(MNNVL)),
    "flashinfer.cutedsl_ll_rms_norm": (lambda row, at: low_latency(row, *LL[at]), list(LL)),
    "flashinfer.cutedsl_ll_moe_rms_norm": (lambda row, at: low_latency(row, *LL_MOE[at]), list(LL_MOE)),
    "flashinfer.cutedsl_bt_rms_norm": (lambda row, at: balanced(row, BT[at]), list(BT)),
    "flashinfer.cutedsl_bt_moe_rms_norm": (lambda row, at: balanced(row, BT_MOE[at]), list(BT_MOE)),
}


@pytest.mark.parametrize("name", FUSED_KERNELS)
def test_a_rule_adds_as_its_kernel_does(name: str) -> None:
    kernel, launches = FUSED_KERNELS[name]
    for seed, at in enumerate(launches):
        hidden, rows, ranks = at
        row = row_of(hidden, seed)
        assert_bits(ours(name, row, rows, ranks), torch.tensor([kernel(row, at)], dtype=FP32))


@pytest.mark.parametrize(("at", "shape"), ONE_SHOT.items())
def test_the_fused_all_reduce_launch(at: Key, shape: tuple[int, int]) -> None:
    assert fused_launch(Launch(hidden=at[0], rows=at[1])) == shape


@pytest.mark.parametrize(("at", "shape"), MNNVL.items())
def test_the_launch_over_multi_node_nvlink(at: Key, shape: tuple[int, int]) -> None:
    assert mnnvl_launch(Launch(hidden=at[0], rows=at[1])) == shape


def test_fewer_sms_shrink_the_cluster_earlier() -> None:
    assert fused_launch(Launch(hidden=4096, rows=20)) == (128, 4)
    assert fused_launch(Launch(hidden=4096, rows=20, sm_count=78)) == (256, 2)
    assert mnnvl_launch(Launch(hidden=4096, rows=12)) == (64, 8)
    assert mnnvl_launch(Launch(hidden=4096, rows=12, sm_count=78)) == (128, 4)


@pytest.mark.parametrize("name", BY_RANKS)
def test_ranks_decide(name: str) -> None:
    """A rule that depends on the ranks has launches that differ in nothing else and are not alike."""
    launches = [(hidden, rows) for hidden in (4096, 7168, 8192) for rows in (20, 600)]
    assert any(
        order_of(name, Launch(hidden=hidden, rows=rows, ranks=4))
        != order_of(name, Launch(hidden=hidden, rows=rows, ranks=ranks))
        for hidden, rows in launches
        for ranks in (8, 16)
    )


def test_squares_in_fp32_are_contracted_over_multi_node_nvlink() -> None:
    """Those of 16-bit rows are exact, or rounded to 16 bits: neither leaves anything to contract."""
    assert RULES["flashinfer.mnnvl_rms_norm"].explain(1000, rows=[1]) == "rows 1  blocks(8) | fold_hi(32) | fold_hi"
    assert RULES["flashinfer.mnnvl_rms_norm"].explain(500, rows=[1], dtype="fp32") == (
        "rows 1  blocks(4, fma) | fold_hi(32) | fold_hi"
    )


@pytest.mark.parametrize(
    ("name", "hidden", "dtype", "ranks"),
    [
        ("trtllm.all_reduce_rms_norm", 4100, "bf16", 1),
        ("trtllm.all_reduce_rms_norm", 8200, "bf16", 1),
        ("trtllm.two_shot_rms_norm", 4100, "bf16", 2),
        ("trtllm.two_shot_rms_norm", 64, "bf16", 16),
        ("trtllm.moe_all_reduce_rms_norm", 4094, "fp32", 1),
        ("trtllm.moe_all_reduce_rms_norm", 8208, "bf16", 1),
        ("flashinfer.mnnvl_rms_norm", 8200, "bf16", 1),
        ("flashinfer.cutedsl_ll_rms_norm", 1000, "fp16", 1),
        ("flashinfer.cutedsl_ll_moe_rms_norm", 8200, "bf16", 1),
        ("flashinfer.cutedsl_bt_rms_norm", 1004, "bf16", 1),
        ("flashinfer.cutedsl_bt_moe_rms_norm", 1000, "fp32", 1),
    ],
)
def test_launches_that_are_refused(name: str, hidden: int, dtype: str, ranks: int) -> None:
    with pytest.raises(OrderError, match=rf"^{name} needs .*, not {hidden} elements in {dtype}\.$"):
        order_of(name, Launch(hidden=hidden, dtype=dtype, ranks=ranks))
