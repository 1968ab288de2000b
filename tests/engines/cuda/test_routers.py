"""What profiles state of routers for the sizes that their kernels are run at, and for no others."""

from __future__ import annotations

import pytest

from tests.engines.cuda import kernels
from tests.engines.cuda.routers import Case
from tests.engines.triton_kernels import trees


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
