"""Fused all-reduces and norms as profiles: what they set on which nodes, and that it is what runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from moeparity.engine.forward import forward
from moeparity.errors import Where
from moeparity.inputs.model import open_model
from moeparity.numerics.bits import same_bits
from moeparity.plan.bind import bind
from moeparity.plan.bound import Plan
from moeparity.plan.engine_profile import load_profile, overrides, placement_rules
from moeparity.plan.spec.variant_schema import Placement
from tests.planted.places import random_tokens

HERE = Where(Path(__file__))
# An expert's 40 channels over two ranks are too few for torch's grouped GEMM.
LOOP = {"**.experts:implementation": "loop"}
ATTENTION, MOE = "trtllm.all_reduce_rms_norm", "trtllm.moe_all_reduce_rms_norm"


def bound(checkpoint: Path, profile: str, tensor: int = 2, **settings: str) -> Plan:
    model = open_model(checkpoint, device="cpu")
    rules = placement_rules(Placement(tensor=tensor), HERE)
    return bind(
        model.graph, load_profile(profile, HERE), model.dtype, overrides({**LOOP, **settings}, HERE), placement=rules
    )


def active(plan: Plan, node: str) -> Mapping[str, str | float]:
    return plan.active(next(n for n in plan.graph.nodes if n.name == node))


def test_the_fused_all_reduce_norm(qwen3_moe: Path) -> None:
    plan = bound(qwen3_moe, "flashinfer-allreduce-norm")
    for norm in ("layers[0].moe.norm", "layers[1].attention.norm", "norm"):
        assert (active(plan, norm)["order"], active(plan, norm)["normalized"]) == (ATTENTION, "fp32")
        assert active(plan, norm)["sm_count"] == 132
    for norm in ("layers[0].attention.norm", "layers[0].attention.q_norm"):
        assert (active(plan, norm)["order"], active(plan, norm)["normalized"]) == ("native", "bf16")
    assert plan.edges(next(n for n in plan.graph.nodes if n.name == "layers[0].moe.residual")) == {}
    assert active(plan, "layers[0].attention.reduce")["collective"] == "flashinfer.one_shot"


def test_squares_are_rounded_over_multi_node_nvlink(qwen3_moe: Path) -> None:
    plan = bound(qwen3_moe, "flashinfer-mnnvl-norm")
    fused, plain = active(plan, "norm"), active(plan, "layers[0].attention.norm")
    assert (fused["square"], fused["order"]) == ("bf16", "flashinfer.mnnvl_rms_norm")
    assert (plain["square"], plain["order"]) == ("fp32", "native")


def test_a_two_shot_launch_takes_its_ranks_from_the_placement(qwen3_moe: Path) -> None:
    """The attribute is there for a rule that asks for it, and for no other."""
    two_shot = {"norm:order": "trtllm.two_shot_rms_norm"}
    plans = [bound(qwen3_moe, "flashinfer-allreduce-norm", n, **two_shot) for n in (2, 4)]
    assert [active(plan, "norm")["tensor"] for plan in plans] == [2, 4]
    assert [active(plan, "norm")["sm_count"] for plan in plans] == [132, 132]
    assert all("tensor" not in active(plan, "layers[0].moe.norm") for plan in plans)


@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3", "qwen2_moe"])
def test_moe_finalize(request: pytest.FixtureRequest, name: str) -> None:
    """One all-reduce for routed and shared experts, and the norm behind it launched by whole warps."""
    plan = bound(request.getfixturevalue(name), "trtllm-moe-finalize")
    last = plan.graph.layers - 1 if isinstance(plan.graph.layers, int) else len(plan.graph.layers) - 1
    moe = f"layers[{last}].moe"
    assert (active(plan, f"{moe}.norm")["order"], active(plan, "norm")["order"]) == (ATTENTION, MOE)
    combine = active(plan, f"{moe}.combine")
    assert (combine["order"], combine["accumulate"], combine["weighted"]) == ("sequential(zero)", "bf16", "bf16")
    assert active(plan, f"{moe}.reduce")["collective"] == "trtllm.one_shot"
    if name != "qwen3_moe":
        reduced = [active(plan, f"{moe}.{node}")["reduce"] for node in ("combine_reduce", "shared_reduce", "reduce")]
        assert reduced == ["later", "later", "now"]


@pytest.mark.parametrize("profile", ["flashinfer-allreduce-norm", "flashinfer-mnnvl-norm", "trtllm-moe-finalize"])
def test_they_run_and_differ(deepseek_v3: Path, profile: str) -> None:
    ids = random_tokens(2, 7)
    runs = [
        forward(deepseek_v3, ids, profile=name, settings=LOOP, placement={"tensor": 2})
        for name in ("hf-default", profile)
    ]
    assert torch.isfinite(runs[1]["logits"]).all()
    assert not same_bits(runs[0]["logits"], runs[1]["logits"])
