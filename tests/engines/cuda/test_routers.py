"""What profiles state of routers for the sizes that their kernels are run at, and for no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeparity.errors import Where
from moeparity.plan.bind import bind
from moeparity.plan.config import Config
from moeparity.plan.engine_profile import load_profile
from moeparity.plan.expand import expand
from moeparity.plan.gpu import gpu_rules, on_gpu
from moeparity.plan.schedule.cases import Sizes
from moeparity.plan.spec.variant_schema import Variant
from moeparity.profiles.compare import architectures
from tests.engines.cuda import kernels, sglang_gemms
from tests.engines.cuda.routers import Case
from tests.engines.triton_kernels import trees

TENSOR_CORES = "tensor_core(h100)"


def test_denominators_are_stated_for_the_numbers_of_experts_that_are_run() -> None:
    stated = {
        count: Case(tokens=1, experts=count, k=2).stated("vllm", "qwen3_moe")["denominator"] for count in range(2, 600)
    }
    assert tuple(count for count, order in stated.items() if order != "native") == kernels.EXPERTS


@pytest.mark.parametrize("model", ["glm4_moe", "deepseek_v3"])
@pytest.mark.parametrize("tokens", [1, 1024, 1025])
@pytest.mark.parametrize("experts", [128, 255, 256, 384])
def test_scores_are_taken_back_where_a_warp_has_a_token(experts: int, tokens: int, model: str) -> None:
    chosen = Case(tokens=tokens, experts=experts, k=8).stated("vllm", model)["chosen"]
    assert chosen == ("scores" if experts >= 256 and tokens <= 1024 else "unbiased")


@pytest.mark.parametrize(("experts", "groups", "stated"), [(256, 8, True), (160, 4, False), (512, 16, False)])
def test_grouped_routers_are_stated_where_their_kernel_takes_them(experts: int, groups: int, stated: bool) -> None:
    case = Case(tokens=7, experts=experts, k=6, groups=groups, top_groups=2)
    assert (case.stated("vllm", "deepseek_v3")["renormalize_order"] == "fold_hi") == stated


def test_sglangs_orders_are_stated_for_the_routers_that_are_run() -> None:
    ran = dict(trees.GATES)
    for experts in range(2, 200):
        for top_k in (2, 4, 8):
            at = Case(tokens=1, experts=experts, k=top_k).stated("sglang", "qwen3_moe")
            assert (at["denominator"] != "native") == (experts in ran), experts
            assert (at["renormalize_order"] != "native") == (ran.get(experts) == top_k), (experts, top_k)


def test_sglangs_grouped_router_is_stated_where_flashinfers_kernel_takes_it() -> None:
    def order(experts: int, groups: int, top_groups: int, k: int) -> str:
        case = Case(tokens=7, experts=experts, k=k, groups=groups, top_groups=top_groups)
        return str(case.stated("sglang", "deepseek_v3")["renormalize_order"])

    assert order(256, 8, 4, 8) == "fold_hi"
    assert {order(256, 8, 4, 9), order(160, 8, 3, 6), order(384, 1, 1, 8)} == {"native"}


@pytest.mark.parametrize(("rows", "order"), [(1, sglang_gemms.ORDER), (16, sglang_gemms.ORDER), (17, TENSOR_CORES)])
def test_sglangs_gate_of_few_rows_is_on_cuda_cores(rows: int, order: str) -> None:
    """Of DeepSeek-V3's sizes, which were run."""
    where = Where(Path("tests/engines/cuda"))
    loaded, graph = load_profile("sglang", where), expand(Config(architectures()["deepseek_v3"]))
    assert graph.sizes["hidden"] == sglang_gemms.HIDDEN
    placement = gpu_rules(graph, Variant(profile="sglang", gpu="h100"), loaded, where)
    plan = bind(graph, on_gpu(loaded, "h100"), "bf16", placement=placement)
    gate = next(node for node in graph.nodes if node.op.name == "gate")
    at = plan.at(Sizes("forward", rows=rows, longest=rows, keys=rows, queries=rows))
    assert at.active(gate)["order"] == order
