"""Every collective against its association written out by hand, at three or more ranks and odd sizes.

`x` are the ranks' tensors in the dtype the collective adds in; torch rounds each addition to that dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest
import torch

from moeparity.numerics.bits import same_bits
from moeparity.numerics.collectives import deepep, gloo, mpi, nccl, nccl_pat
from moeparity.numerics.collectives import inference_engines as engines
from moeparity.numerics.collectives.declaration import Collective
from moeparity.numerics.collectives.execute import all_reduce, reduce_scatter
from moeparity.numerics.collectives.registry import COLLECTIVES
from tests.numerics.collectives.data import zero_sum

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
Sum = Callable[[Sequence[torch.Tensor]], torch.Tensor]
Span = tuple[int, int, Sum]
Golden = tuple[Collective, int, torch.dtype, torch.dtype, int, list[Span]]


def ascending4(x: Sequence[torch.Tensor]) -> torch.Tensor:
    return ((x[0] + x[1]) + x[2]) + x[3]


def ascending8(x: Sequence[torch.Tensor]) -> torch.Tensor:
    return ((((((x[0] + x[1]) + x[2]) + x[3]) + x[4]) + x[5]) + x[6]) + x[7]


def twelve(x: Sequence[torch.Tensor]) -> torch.Tensor:
    return ascending8(x) + (((x[8] + x[9]) + x[10]) + x[11])


def straight12(x: Sequence[torch.Tensor]) -> torch.Tensor:
    return (((ascending8(x) + x[8]) + x[9]) + x[10]) + x[11]


def two_nodes(x: Sequence[torch.Tensor]) -> torch.Tensor:
    return ascending8(x[:8]).bfloat16().float() + ascending8(x[8:]).bfloat16().float()


def lanes8(x: Sequence[torch.Tensor]) -> torch.Tensor:
    return (((x[0] + x[2]) + x[4]) + x[6]) + (((x[1] + x[3]) + x[5]) + x[7])


def ring4(a: int, b: int, c: int, d: int) -> Sum:
    return lambda x: ((x[a] + x[b]) + x[c]) + x[d]


def ring3(a: int, b: int, c: int) -> Sum:
    return lambda x: (x[a] + x[b]) + x[c]


# One node: last rank of the chain first. Two ranks on each of three nodes: in the first tree node 2 is the second
# child of node 0 and takes node 1 as its first child; the second tree is the first with all nodes moved on by one.
PAIRS = ((0, 1), (2, 3), (4, 5))


def balanced_first(x: Sequence[torch.Tensor]) -> torch.Tensor:
    node1 = x[2] + x[3]
    node2 = x[4] + (x[5] + node1)
    return (x[0] + x[1]) + node2


def balanced_second(x: Sequence[torch.Tensor]) -> torch.Tensor:
    node2 = x[4] + x[5]
    node0 = x[0] + (x[1] + node2)
    return (x[2] + x[3]) + node0


def split_first(x: Sequence[torch.Tensor]) -> torch.Tensor:
    node1 = x[2] + x[3]
    node2 = x[4] + (x[5] + node1)
    return x[0] + (x[1] + node2)


def four_nodes_second(x: Sequence[torch.Tensor]) -> torch.Tensor:
    # Mirrored: node 3 is the root, its child 1 takes 2 first and then 0.
    return x[3] + ((x[1] + x[2]) + x[0])


def pat8(d: int) -> Sum:
    """8 ranks: d and (d-2, which has d-3), then (d-4 with (d-6, which has d-7) and d-5), then d-1."""
    return lambda x: ((x[d] + (x[d - 2] + x[d - 3])) + ((x[d - 4] + (x[d - 6] + x[d - 7])) + x[d - 5])) + x[d - 1]


def looped(full: int) -> list[Span]:
    """Three ranks: a loop of three full chunks, then 21 elements in chunks of 8 + 8 + 5 (16-byte steps)."""
    sums = (ring3(1, 2, 0), ring3(2, 0, 1), ring3(0, 1, 2))
    border = 3 * full
    last = ((border, border + 8), (border + 8, border + 16), (border + 16, border + 21))
    first = ((0, full), (full, 2 * full), (2 * full, border))
    return [(start, stop, sums[i % 3]) for i, (start, stop) in enumerate((*first, *last))]


# name, ranks, dtype, dtype of the additions, elements, spans
GOLDENS: list[Golden] = [
    # 7 x 4 bytes in 6 segments of 2 elements, two a chunk: 4 + 3 + 0 elements.
    (gloo.ALL_REDUCE, 3, FP32, FP32, 7, [(0, 4, ring3(2, 1, 0)), (4, 7, ring3(0, 2, 1))]),
    # 11 x 2 bytes in 8 segments of 2 elements (3 bytes rounded up to 4), two a chunk: 4 + 4 + 3 + 0.
    (
        gloo.ALL_REDUCE,
        4,
        BF16,
        BF16,
        11,
        [(0, 4, ring4(3, 2, 1, 0)), (4, 8, ring4(0, 3, 2, 1)), (8, 11, ring4(1, 0, 3, 2))],
    ),
    # 9 elements reduced at once: 6 segments of 2, chunks 4 + 4 + 1, sliced afterwards.
    (
        gloo.REDUCE_SCATTER_TENSOR,
        3,
        FP32,
        FP32,
        9,
        [(0, 4, ring3(2, 1, 0)), (4, 8, ring3(0, 2, 1)), (8, 9, ring3(1, 0, 2))],
    ),
    # Three tensors of 5 elements, each 6 segments of 1, two a chunk: 2 + 2 + 1.
    (
        gloo.REDUCE_SCATTER_LIST,
        3,
        FP32,
        FP32,
        15,
        [
            (5 * d + start, 5 * d + stop, sum_)
            for d in range(3)
            for start, stop, sum_ in ((0, 2, ring3(2, 1, 0)), (2, 4, ring3(0, 2, 1)), (4, 5, ring3(1, 0, 2)))
        ],
    ),
    # 7 elements for 3 blocks: 3 + 2 + 2.
    (mpi.RING, 3, FP32, FP32, 7, [(0, 3, ring3(0, 1, 2)), (3, 5, ring3(1, 2, 0)), (5, 7, ring3(2, 0, 1))]),
    (mpi.RECURSIVE_DOUBLING, 3, FP32, FP32, 5, [(0, 5, ring3(0, 1, 2))]),
    (mpi.RECURSIVE_DOUBLING, 5, FP32, FP32, 5, [(0, 5, lambda x: ((x[0] + x[1]) + x[2]) + (x[3] + x[4]))]),
    (
        mpi.RECURSIVE_DOUBLING,
        7,
        FP32,
        FP32,
        5,
        [(0, 5, lambda x: ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + x[6]))],
    ),
    # 21 fp32 elements on one channel: ceil(21 / 3) = 7, rounded up to 16 bytes: 8 + 8 + 5.
    (
        nccl.RING,
        3,
        FP32,
        FP32,
        21,
        [(0, 8, ring3(1, 2, 0)), (8, 16, ring3(2, 0, 1)), (16, 21, ring3(0, 1, 2))],
    ),
    # 33 bf16 elements, 4 ranks on the ring 0 2 1 3: 9 rounded up to 16: chunks 16 + 16 + 1.
    (
        nccl.ring_all_reduce(rings=((0, 2, 1, 3),)),
        4,
        BF16,
        BF16,
        33,
        [(0, 16, ring4(2, 1, 3, 0)), (16, 32, ring4(1, 3, 0, 2)), (32, 33, ring4(3, 0, 2, 1))],
    ),
    # 16385 + 8191 + 1 fp32: cells of 16384 bytes, 98308 bytes are 7 cells; 196616 bytes of traffic on 2 channels are
    # 98320 each (rounded up to 16), 4 cells: channel 0 has 16384 elements, channel 1 the other 8193. Chunks of channel
    # 0: ceil(16384 / 3) = 5462 up to 5464; of channel 1: 2731 up to 2732.
    (
        nccl.ring_all_reduce(2),
        3,
        FP32,
        FP32,
        24577,
        [
            (0, 5464, ring3(1, 2, 0)),
            (5464, 10928, ring3(2, 0, 1)),
            (10928, 16384, ring3(0, 1, 2)),
            (16384, 19116, ring3(1, 2, 0)),
            (19116, 21848, ring3(2, 0, 1)),
            (21848, 24577, ring3(0, 1, 2)),
        ],
    ),
    # LL: cells of 4096 bytes, 8 times their size in traffic: 40004 bytes are 10 cells, 80016 bytes a channel are 3
    # cells. 4 channels are wanted and 2 exist: channel 0 keeps its 3 cells, channel 1 has the rest. Full chunks are
    # 32768 bytes; channel 0: 3072 elements in chunks of 1024; channel 1: 6929, ceil / 3 = 2310 up to 2312.
    (
        nccl.ring_all_reduce(1, existing=2, protocol="ll"),
        3,
        FP32,
        FP32,
        10001,
        [
            (0, 1024, ring3(1, 2, 0)),
            (1024, 2048, ring3(2, 0, 1)),
            (2048, 3072, ring3(0, 1, 2)),
            (3072, 5384, ring3(1, 2, 0)),
            (5384, 7696, ring3(2, 0, 1)),
            (7696, 10001, ring3(0, 1, 2)),
        ],
    ),
    # Full chunks: 4 of 8 steps of 4 MiB; a step of LL's buffer, half of it flags; 15/16 of a step of LL128's.
    (nccl.RING, 3, FP32, FP32, 3 * 524288 + 21, looped(524288)),
    (nccl.ring_all_reduce(protocol="ll"), 3, FP32, FP32, 3 * 8192 + 21, looped(8192)),
    (nccl.ring_all_reduce(protocol="ll128"), 3, FP32, FP32, 3 * 144000 + 21, looped(144000)),
    # 65556 bytes are 5 cells, 131112 bytes of traffic on 2 channels 65568 each, 3 cells: channel 0, on the ring
    # 0 1 2 3, has 12288 elements in chunks of 3072; channel 1, on 0 2 3 1, has 4101, ceil / 4 = 1026 up to 1028.
    (
        nccl.ring_all_reduce(2, rings=((0, 1, 2, 3), (0, 2, 3, 1))),
        4,
        FP32,
        FP32,
        16389,
        [
            (0, 3072, ring4(1, 2, 3, 0)),
            (3072, 6144, ring4(2, 3, 0, 1)),
            (6144, 9216, ring4(3, 0, 1, 2)),
            (9216, 12288, ring4(0, 1, 2, 3)),
            (12288, 13316, ring4(2, 3, 1, 0)),
            (13316, 14344, ring4(3, 1, 0, 2)),
            (14344, 15372, ring4(1, 0, 2, 3)),
            (15372, 16389, ring4(0, 2, 3, 1)),
        ],
    ),
    # Block r ends at rank r.
    (
        nccl.RING_REDUCE_SCATTER,
        3,
        BF16,
        BF16,
        15,
        [(0, 5, ring3(1, 2, 0)), (5, 10, ring3(2, 0, 1)), (10, 15, ring3(0, 1, 2))],
    ),
    # On the ring 0 2 3 1 the sum for rank 1 starts at rank 0.
    (
        nccl.ring_reduce_scatter(rings=((0, 2, 3, 1),)),
        4,
        BF16,
        BF16,
        20,
        [
            (0, 5, ring4(2, 3, 1, 0)),
            (5, 10, ring4(0, 2, 3, 1)),
            (10, 15, ring4(3, 1, 0, 2)),
            (15, 20, ring4(1, 0, 2, 3)),
        ],
    ),
    # Blocks of 65556 bytes, 4 times that in traffic: 131120 on each of 2 channels. Cells of 8192 bytes, 32768 of
    # traffic: 9 cells, 5 (10240 elements) on channel 0 and its ring 0 1 2 3, the rest on channel 1 and 0 2 3 1.
    (
        nccl.ring_reduce_scatter(2, rings=((0, 1, 2, 3), (0, 2, 3, 1))),
        4,
        FP32,
        FP32,
        4 * 16389,
        [
            (16389 * d + start, 16389 * d + stop, sum_)
            for d, low, high in (
                (0, ring4(1, 2, 3, 0), ring4(2, 3, 1, 0)),
                (1, ring4(2, 3, 0, 1), ring4(0, 2, 3, 1)),
                (2, ring4(3, 0, 1, 2), ring4(3, 1, 0, 2)),
                (3, ring4(0, 1, 2, 3), ring4(1, 0, 2, 3)),
            )
            for start, stop, sum_ in ((0, 10240, low), (10240, 16389, high))
        ],
    ),
    # On the ring 0 2 1 rank 1 stands last.
    (
        nccl.ring_reduce_scatter(rings=((0, 2, 1),)),
        3,
        BF16,
        BF16,
        15,
        [(0, 5, ring3(2, 1, 0)), (5, 10, ring3(0, 2, 1)), (10, 15, ring3(1, 0, 2))],
    ),
    (nccl.TREE, 3, BF16, BF16, 7, [(0, 7, lambda x: x[0] + (x[1] + x[2]))]),
    (nccl.TREE, 4, FP16, FP16, 7, [(0, 7, lambda x: x[0] + (x[1] + (x[2] + x[3])))]),
    (nccl.tree_all_reduce(nodes=PAIRS), 6, BF16, BF16, 7, [(0, 7, balanced_first)]),
    (nccl.tree_all_reduce(nodes=PAIRS, pattern="split_tree"), 6, BF16, BF16, 7, [(0, 7, split_first)]),
    (
        nccl.tree_all_reduce(2, nodes=PAIRS),
        6,
        FP32,
        FP32,
        24577,
        [(0, 16384, balanced_first), (16384, 24577, balanced_second)],
    ),
    (
        nccl.tree_all_reduce(2, nodes=((0,), (1,), (2,), (3,)), pattern="tree"),
        4,
        FP32,
        FP32,
        24577,
        [(0, 16384, lambda x: x[0] + ((x[2] + x[1]) + x[3])), (16384, 24577, four_nodes_second)],
    ),
    (nccl.SYMMETRIC_LL, 3, BF16, FP32, 61, [(0, 61, ring3(0, 1, 2))]),
    (nccl.NVLS, 3, BF16, FP32, 61, [(0, 61, ring3(0, 1, 2))]),
    # 5 ranks: d and (d-2, which has d-3), then d-4, then d-1.
    (
        nccl_pat.PAT,
        5,
        BF16,
        BF16,
        15,
        [
            (0, 3, lambda x: ((x[0] + (x[3] + x[2])) + x[1]) + x[4]),
            (3, 6, lambda x: ((x[1] + (x[4] + x[3])) + x[2]) + x[0]),
            (6, 9, lambda x: ((x[2] + (x[0] + x[4])) + x[3]) + x[1]),
            (9, 12, lambda x: ((x[3] + (x[1] + x[0])) + x[4]) + x[2]),
            (12, 15, lambda x: ((x[4] + (x[2] + x[1])) + x[0]) + x[3]),
        ],
    ),
    (nccl_pat.PAT, 8, BF16, BF16, 24, [(3 * d, 3 * d + 3, pat8(d)) for d in range(8)]),
    # 3 packs of 8 for 4 ranks: the last rank has all; 7 packs: one each and four for the last.
    (engines.VLLM_TWO_STAGE, 4, BF16, FP32, 24, [(0, 24, ring4(3, 0, 1, 2))]),
    (
        engines.VLLM_TWO_STAGE,
        4,
        BF16,
        FP32,
        56,
        [
            (0, 8, ring4(0, 1, 2, 3)),
            (8, 16, ring4(1, 2, 3, 0)),
            (16, 24, ring4(2, 3, 0, 1)),
            (24, 56, ring4(3, 0, 1, 2)),
        ],
    ),
    (engines.VLLM_ONE_STAGE, 4, BF16, FP32, 56, [(0, 56, ascending4)]),
    (engines.MNNVL_ONE_SHOT, 12, BF16, FP32, 24, [(0, 24, twelve)]),
    (engines.MNNVL_TWO_SHOT, 12, BF16, FP32, 24, [(0, 24, straight12)]),
    (engines.CUTEDSL_TWO_LANES, 8, BF16, FP32, 24, [(0, 24, lanes8)]),
    (engines.CUTEDSL_ONE_LANE, 8, BF16, FP32, 24, [(0, 24, ascending8)]),
    (engines.CUTEDSL_BT, 8, BF16, FP32, 24, [(0, 24, ascending8)]),
    (deepep.INTRANODE, 3, BF16, FP32, 61, [(0, 61, ring3(0, 1, 2))]),
    (deepep.INTERNODE, 16, BF16, FP32, 61, [(0, 61, two_nodes)]),
    (engines.MULTIMEM, 4, BF16, FP32, 56, [(0, 56, ascending4)]),
    (engines.QUICK_REDUCE, 4, FP16, FP16, 56, [(0, 56, ascending4)]),
]


def ascending(collectives: Iterable[Collective], adds_in: torch.dtype) -> list[Golden]:
    """Seven 16-byte packs over four ranks, or three where the kernel is for other numbers of ranks."""
    goldens: list[Golden] = []
    for collective in collectives:
        ranks, sum_ = (4, ascending4) if 4 in collective.worlds else (3, ring3(0, 1, 2))
        goldens.append((collective, ranks, BF16, adds_in, 56, [(0, 56, sum_)]))
    return goldens


GOLDENS += ascending([*engines.lamport("io"), *engines.SYMM_MEM], BF16)
GOLDENS += ascending([*engines.lamport("fp32"), *engines.SGLANG], FP32)


def run(collective: Collective, inputs: list[torch.Tensor]) -> torch.Tensor:
    if collective.scatters:
        return torch.cat(reduce_scatter(collective, inputs))
    outputs = all_reduce(collective, inputs)
    assert len(outputs) == len(inputs)
    assert all(same_bits(outputs[0], output) for output in outputs)
    return outputs[0]


@pytest.mark.parametrize(
    "golden", GOLDENS, ids=lambda golden: f"{golden[0].name}-{golden[1]}x{golden[4]}-{str(golden[2])[6:]}"
)
def test_the_association_written_by_hand(
    golden: Golden,
) -> None:
    collective, ranks, dtype, adds_in, elements, spans = golden
    inputs = zero_sum(ranks, elements, dtype, spread=None if adds_in == dtype else 24)
    wide = [x.to(adds_in) for x in inputs]
    result_in = adds_in if collective.order_map.output == "fp32" else dtype
    expected = torch.cat([sum_([x[start:stop] for x in wide]) for start, stop, sum_ in spans]).to(result_in)
    assert [span[0] for span in spans[1:]] + [elements] == [span[1] for span in spans]
    assert same_bits(run(collective, inputs), expected)
    # The data tells this association from a chain along any ring: two chains at most are the same sum.
    chains = [sum_along(wide, first, step).to(result_in) for first in range(ranks) for step in (1, -1)]
    assert sum(same_bits(chain, expected) for chain in chains) <= 2


def sum_along(x: list[torch.Tensor], first: int, step: int) -> torch.Tensor:
    total = x[first]
    for i in range(1, len(x)):
        total = total + x[(first + step * i) % len(x)]
    return total


def test_every_collective_has_a_golden() -> None:
    of_two_ranks = {name for name, collective in COLLECTIVES.items() if collective.worlds == (2,)}
    assert of_two_ranks == {"vllm.cpu_shm"}
    assert {golden[0].name for golden in GOLDENS} == set(COLLECTIVES) - of_two_ranks
    assert all(golden[1] >= 3 for golden in GOLDENS)


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
def test_two_ranks_have_one_sum(dtype: torch.dtype) -> None:
    """What a collective of two ranks only has for an association; three ranks are refused."""
    first, second = torch.randn(2, 57).to(dtype)
    expected = (first.float() + second.float()).to(dtype)
    assert not same_bits(expected, first)
    assert same_bits(run(engines.VLLM_CPU_SHM, [first, second]), expected)
    assert same_bits(run(engines.VLLM_CPU_SHM, [second, first]), expected)
    with pytest.raises(ValueError, match="2"):
        all_reduce(engines.VLLM_CPU_SHM, [first, second, first])


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
def test_the_data_tells_orders_apart(dtype: torch.dtype) -> None:
    a, b, c = zero_sum(3, 5001, dtype)
    orders = [(a + b) + c, (b + c) + a, (c + a) + b]
    for i, j in ((0, 1), (1, 2), (0, 2)):
        assert (orders[i] != orders[j]).float().mean() > 0.2


def test_ring_order_probe() -> None:
    """Column j: rank j holds 2^24, the next one 1, the next -2^24: 1 only where the 1 does not meet 2^24 first."""
    columns = torch.zeros(4, 4)
    for j in range(4):
        columns[j, j], columns[(j + 1) % 4, j], columns[(j + 2) % 4, j] = 2.0**24, 1.0, -(2.0**24)
    inputs = [row.repeat(4) for row in columns]
    one_stage = all_reduce(engines.VLLM_ONE_STAGE, inputs)[0]
    two_stage = all_reduce(engines.VLLM_TWO_STAGE, inputs)[0]
    # Ranks 0 1 2 3: columns 2 and 3 add -2^24 before or after the 1 has found no 2^24.
    assert one_stage.tolist() == [0, 0, 1, 1] * 4
    # Starting at the owner: pack 0 (owner 0) as above, pack 1 as 1 2 3 0, pack 2 as 2 3 0 1, pack 3 as 3 0 1 2.
    assert two_stage.tolist() == [0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0]
