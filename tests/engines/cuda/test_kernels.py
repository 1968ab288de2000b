"""vLLM's, FlashInfer's and TensorRT-LLM's own kernels, through their PTX, against this project's nodes: every bit."""

from __future__ import annotations

import pytest

from tests.engines.cuda import activations, collectives, combines, kernels, norms, ropes, routers
from tests.engines.cuda.compared import BF16
from tests.engines.cuda.norms import Rows
from tests.engines.cuda.routers import Case
from tests.verified import record

pytestmark = pytest.mark.live


@pytest.mark.parametrize("idea", ["norms", "routers", "rows", "jit", "transformer engine", "tensorrt-llm", "ranks"])
def test_a_node_has_the_kernels_bits(idea: str) -> None:
    wrong = []
    for comparison in kernels.small()[idea]:
        compared = comparison()
        assert compared.numbers > 0
        if compared.differ:
            wrong.append(f"{compared.kernel}, {compared.shape}: {compared.differ} of {compared.numbers} differ")
        for op, values in compared.verified.items():
            against = f"{compared.version} {compared.kernel}"
            record(op, values, against, operands=BF16, how="ptx", compiled=compared.compiled)
    assert wrong == []


def test_another_order_of_additions_is_seen() -> None:
    """Few numbers of bf16 show it, but some do."""
    rows = Rows.drawn(7168, 64)
    assert (norms.vllm_rms_norm(rows).control or 0) > 0
    assert (combines.vllm_moe_sum(rows).control or 0) > 0
    assert (collectives.vllm_all_reduce(8, 3, 2048, 1).control or 0) > 0
    assert (collectives.flashinfer_all_reduce(4, 3, 2048).control or 0) > 0


def test_the_gates_take_cudas_functions_not_torchs() -> None:
    gate = routers.top_k_softmax(Case(tokens=64, experts=128, k=8))
    assert gate.differ == 0
    assert (gate.control or 0) > 0
    assert gate.assumed == ()
    assert (routers.no_aux_tc(Case(tokens=24, experts=128, k=6, biased=True)).control or 0) > 0


def test_at_128_experts_every_weight_is_the_kernels_and_a_quarter_was_not() -> None:
    case = Case(tokens=2048, experts=128, k=8)
    assert routers.top_k_softmax(case).differ == 0
    at = case.stated("vllm", "qwen3_moe")
    _, weights = case.by_node(at, "softmax")
    _, of_another_number = case.by_node({**at, "denominator": "native"}, "softmax")
    assert 0.1 < float((weights != of_another_number).float().mean()) < 0.5


@pytest.mark.parametrize("tokens", [1, 1024, 1025])
@pytest.mark.parametrize("experts", [128, 256, 384])
def test_scores_are_taken_back_where_a_warp_has_a_token(tokens: int, experts: int) -> None:
    assert routers.single_group_top_k(Case(tokens=tokens, experts=experts, k=8, biased=True)).differ == 0


def test_what_silu_is_rounded_to_is_seen() -> None:
    assert (activations.vllm_silu_and_mul(5, 768).control or 0) > 0
    assert (activations.flashinfer_silu_and_mul(5, 768).control or 0) > 0


def test_a_comparison_that_differs_verifies_nothing() -> None:
    gate = routers.top_k_softmax(Case(tokens=8, experts=128, k=8))
    assert list(gate.verified) == ["router"]
    assert gate.compiled.assumed == gate.assumed
    assert type(gate)(**{**vars(gate), "differ": 1}).verified == {}


def test_what_the_data_cannot_tell_is_not_verified() -> None:
    """Products of two numbers of bf16 are exact in fp32, and no fma differs from them; with cos in fp32 it does."""
    blind, told_values = (
        compared.verified["rope"]
        for compared in (
            ropes.vllm_rotary(9, (8, 2), 128, 128, pairs=False),
            ropes.flashinfer_rotary(9, (8, 2), pairs=False),
        )
    )
    assert "products" in blind
    assert "contraction" not in blind
    assert told_values["contraction"] == "cos"


@pytest.mark.parametrize("seed", range(3))
def test_an_all_reduce_has_the_same_bits_whichever_rank_is_ahead(seed: int) -> None:
    for compared in (
        collectives.vllm_all_reduce(2, 2, 1024, 1, seed=seed),
        collectives.vllm_all_reduce(4, 1, 1024, 2, seed=seed),
        collectives.flashinfer_all_reduce(2, 2, 1024, norm=True, seed=seed),
        collectives.flashinfer_all_reduce(2, 3, 1024, shots=2, seed=seed),
    ):
        assert compared.differ == 0
