"""What holds for all collectives: two ranks leave no order, signed zeros, AVG, and what a library does not take."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from moeparity.numerics.bits import same_bits
from moeparity.numerics.collectives import gloo, mpi, nccl, nccl_pat
from moeparity.numerics.collectives import inference_engines as engines
from moeparity.numerics.collectives.declaration import Collective
from moeparity.numerics.collectives.execute import all_reduce, log_softmax, reduce_scatter
from moeparity.numerics.collectives.registry import COLLECTIVES
from tests.numerics.collectives.data import zero_sum

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
OF_TWO = [x for x in COLLECTIVES.values() if not x.worlds or 2 in x.worlds]


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
def test_two_ranks_agree_over_all_collectives(dtype: torch.dtype) -> None:
    """One addition, rounded once: whatever the order and the register."""
    inputs = zero_sum(2, 4096, dtype)
    expected = (inputs[0].double() + inputs[1].double()).float().to(dtype)
    assert not (expected == 0).any()
    run = 0
    for collective in OF_TWO:
        if {FP32: "fp32", BF16: "bf16", FP16: "fp16"}[dtype] not in collective.dtypes:
            continue
        result = (
            torch.cat(reduce_scatter(collective, inputs)) if collective.scatters else all_reduce(collective, inputs)[0]
        )
        assert same_bits(result, expected), collective.name
        run += 1
    assert run >= 20


def test_accumulator_and_order_matter_from_four_ranks_on() -> None:
    inputs = zero_sum(4, 4096, BF16)
    results = [
        all_reduce(algorithm, inputs)[0]
        for algorithm in (nccl.RING, nccl.TREE, gloo.ALL_REDUCE, engines.SYMM_MEM[0], engines.VLLM_ONE_STAGE)
    ]
    for i, a in enumerate(results):
        for b in results[i + 1 :]:
            assert not same_bits(a, b)


def test_lamport_turns_negative_zeros_and_two_shot_keeps_them() -> None:
    """+0 +0 | -0 -0 | +0 -0 | -0 +0 in 16-bit pairs; TensorRT-LLM compares 32-bit words, FlashInfer elements."""
    zeros = torch.tensor([0.0, 0.0, -0.0, -0.0, 0.0, -0.0, -0.0, 0.0], dtype=BF16)
    inputs = [zeros] * 4
    by_name = {
        algorithm.name: all_reduce(algorithm, inputs)[0].signbit().tolist() for algorithm in engines.lamport("io")
    }
    assert by_name["flashinfer.one_shot"] == [False] * 8
    assert by_name["trtllm.one_shot"] == [False, False, True, True, False, False, True, False]
    signs = [False, False, True, True, False, True, True, False]
    assert by_name["flashinfer.two_shot"] == by_name["trtllm.two_shot"] == signs
    words = [algorithm for algorithm in engines.lamport("io") if algorithm.name == "trtllm.one_shot"]
    assert not all_reduce(words[0], [zeros.float()] * 4)[0].signbit().any()


def test_a_register_that_starts_at_zero_loses_the_sign_of_zero() -> None:
    inputs = [torch.full((8,), -0.0, dtype=BF16)] * 4
    assert all_reduce(engines.VLLM_ONE_STAGE, inputs)[0].signbit().all()
    assert not all_reduce(engines.MNNVL_ONE_SHOT, inputs)[0].signbit().any()
    # SGLang 0.5.23 starts from the first rank.
    assert all(all_reduce(algorithm, inputs)[0].signbit().all() for algorithm in engines.SGLANG)


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
def test_three_ways_to_average(dtype: torch.dtype) -> None:
    x = zero_sum(3, 5, dtype)
    third = torch.tensor(1 / 3).to(dtype)
    scaled = [(tensor.double() * third.double()).float().to(dtype) for tensor in x]
    # NCCL, 5 elements: 16-byte steps hold them in at most two chunks; PAT and the rings scale before they add.
    span = 16 // x[0].element_size()
    ring = torch.cat(
        [
            ((scaled[1] + scaled[2]) + scaled[0])[:span],
            ((scaled[2] + scaled[0]) + scaled[1])[span:],
        ]
    )
    assert same_bits(all_reduce(nccl.RING, x, average=True)[0], ring)
    wide = [tensor.float() for tensor in x]
    after = (((wide[0] + wide[1]) + wide[2]) * torch.tensor(1 / 3)).to(dtype)
    assert same_bits(all_reduce(nccl.SYMMETRIC_LL, x, average=True)[0], after)
    # gloo: 2 elements a chunk here, then a division.
    sums = torch.cat([((x[2] + x[1]) + x[0])[:2], ((x[0] + x[2]) + x[1])[2:4], ((x[1] + x[0]) + x[2])[4:]])
    assert same_bits(all_reduce(gloo.ALL_REDUCE, x, average=True)[0], (sums.float() / 3).to(dtype))


def test_vocabulary_parallel_log_softmax() -> None:
    shards = [x.clamp(-30, 30).view(3, 5) for x in zero_sum(3, 15, BF16)]
    wide = [x.float() for x in shards]
    maximum = torch.maximum(torch.maximum(wide[0].amax(-1), wide[1].amax(-1)), wide[2].amax(-1))[:, None]
    sums = [(x - maximum).exp().sum(-1, keepdim=True) for x in wide]
    # gloo, 3 elements: one a segment, two a chunk.
    total = torch.cat([((sums[2] + sums[1]) + sums[0])[:2], ((sums[0] + sums[2]) + sums[1])[2:]])
    rank_total = partial(torch.sum, dim=-1, keepdim=True)
    for rank, result in enumerate(log_softmax(wide, rank_total, partial(all_reduce, gloo.ALL_REDUCE))):
        assert same_bits(result, (wide[rank] - maximum) - total.log())
    joint = torch.cat(shards, -1).double().log_softmax(-1)
    torch.testing.assert_close(
        torch.cat(log_softmax(wide, rank_total, partial(all_reduce, nccl.RING)), -1).double(),
        joint,
        atol=1e-4,
        rtol=0,
    )


def test_shapes_are_kept_and_blocks_are_rows() -> None:
    inputs = [x.view(6, 5) for x in zero_sum(3, 30, FP32)]
    assert all_reduce(gloo.ALL_REDUCE, inputs)[0].shape == (6, 5)
    blocks = reduce_scatter(nccl_pat.PAT, inputs)
    assert [tuple(block.shape) for block in blocks] == [(2, 5)] * 3
    x = [tensor[4:] for tensor in inputs]
    assert same_bits(blocks[2], (x[2] + x[0]) + x[1])


def test_strided_and_empty_inputs() -> None:
    inputs = [x.view(5, 6) for x in zero_sum(3, 30, FP32)]
    across = all_reduce(gloo.ALL_REDUCE, [x.t() for x in inputs])[0]
    assert same_bits(across, all_reduce(gloo.ALL_REDUCE, [x.t().contiguous() for x in inputs])[0])
    assert all_reduce(gloo.ALL_REDUCE, [torch.empty(0, 4)] * 3)[0].shape == (0, 4)


REFUSED: list[tuple[Collective, list[torch.Tensor], str]] = [
    (engines.VLLM_ONE_STAGE, [torch.ones(8)] * 3, "runs on"),
    (engines.VLLM_ONE_STAGE, [torch.ones(7)] * 4, "multiples of 16 bytes"),
    (engines.MULTIMEM, [torch.ones(8)] * 4, "is known for"),
    (gloo.ALL_REDUCE, [torch.ones(2).double()] * 3, "is known for"),
    (gloo.ALL_REDUCE, [torch.ones(2).int()] * 3, "not for torch.int32"),
    (mpi.RING, [torch.ones(2)] * 3, "needs an element a rank"),
    (gloo.ALL_REDUCE, [torch.ones(2), torch.ones(3)], "differ in shape or dtype"),
    (gloo.REDUCE_SCATTER_LIST, [torch.ones(3)] * 3, "is a reduce-scatter"),
    (nccl.ring_all_reduce(rings=((1, 0, 2),)), [torch.ones(3)] * 3, "rank 0 first"),
    (nccl.tree_all_reduce(nodes=((0, 1),)), [torch.ones(3)] * 3, "once each"),
    (nccl.tree_all_reduce(nodes=((0, 1), (2,))), [torch.ones(3)] * 3, "needs two ranks a node"),
]


@pytest.mark.parametrize(("collective", "inputs", "message"), REFUSED)
def test_what_a_library_does_not_take_is_refused(
    collective: Collective, inputs: list[torch.Tensor], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        all_reduce(collective, inputs)


def test_scatters_and_averages_are_refused_where_there_are_none() -> None:
    with pytest.raises(ValueError, match="is an all-reduce"):
        reduce_scatter(gloo.ALL_REDUCE, [torch.ones(3)] * 3)
    with pytest.raises(ValueError, match="does not divide by 3 ranks"):
        reduce_scatter(gloo.REDUCE_SCATTER_LIST, [torch.ones(4)] * 3)
    with pytest.raises(ValueError, match="has no AVG"):
        all_reduce(nccl.NVLS, [torch.ones(3)] * 3, average=True)
