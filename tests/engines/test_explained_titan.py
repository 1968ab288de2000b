"""Traces of torchtitan's own models, explained without being told: their rounding sites, and what is no choice."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeparity.evidence.explain import trace
from moeparity.evidence.explain.report import Explained, Explanation
from moeparity.evidence.explain.show import document
from moeparity.evidence.explain.trace import ExplainRequest, explain_trace
from moeparity.plan.address import role
from tests.engines.live import ask
from tests.evidence.traced import tokens
from tests.printed import printed

pytestmark = pytest.mark.live
TITAN = ("torchtitan-0.3.0", "triton")
FP32_GATE, BALANCED = 1, 2
NORMS = {"normalized=fp32"}


@pytest.fixture(scope="module")
def traces(qwen3_moe: Path, deepseek_v3: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    """By checkpoint. Qwen3's gate of one layer is in fp32, as on a GPU; the router of another goes round."""
    folder = tmp_path_factory.mktemp("titan")
    settings = {qwen3_moe: {"fp32_gates": (FP32_GATE,), "balanced": (BALANCED,)}, deepseek_v3: {}}
    cases = {
        checkpoint.name: {
            "kind": "trace",
            "checkpoint": str(checkpoint),
            "folder": str(folder / checkpoint.name),
            "ids": tokens((1, 6)),
            **further,
        }
        for checkpoint, further in settings.items()
    }
    ask("live_titan_models", TITAN, cases)
    return {checkpoint: folder / checkpoint.name for checkpoint in settings}


def explained(traces: dict[Path, Path], checkpoint: Path, nodes: str) -> Explained:
    return explain_trace(ExplainRequest(trace=traces[checkpoint], checkpoint=checkpoint, nodes=(nodes,)))


def answers_by_role(result: Explained) -> dict[str, set[str]]:
    """By role, the first answer of every node that hf-eager does not compute, without the names of layers."""
    otherwise = (node for node in result.nodes if not node.as_started)
    return {role(node.node): {short(choice, node) for choice in node.matches[0].choices} for node in otherwise}


def short(choice: str, node: Explanation) -> str:
    return role(choice).removeprefix(f"{role(node.node)}:")


def unseen(result: Explained) -> set[str]:
    return {role(node.node).rpartition(".")[2] for node in result.unseen}


def test_qwen3s_sites_are_named_and_nothing_innocent(traces: dict[Path, Path], qwen3_moe: Path) -> None:
    """torch's RMSNorm rounds once, behind the weight; cos, sin and products in fp32; sdpa; gate and routing weights in
    fp32; rows weighted and rounded by expert, added in fp32. Experts and cache are looked through.
    """
    result = explained(traces, qwen3_moe, f"layers[{FP32_GATE}].**")
    assert answers_by_role(result) == {
        "layers[*].attention.norm": NORMS,
        "layers[*].attention.q_norm": NORMS,
        "layers[*].attention.k_norm": NORMS,
        "layers[*].attention.rope": {"rotary:output=fp32", "products=fp32"},
        "layers[*].attention.attend": {"implementation=sdpa"},
        "layers[*].moe.norm": NORMS,
        "layers[*].moe.gate": {"output=fp32"},
        "layers[*].moe.router": {"slots=unsorted", "weights=fp32"},
        "layers[*].moe.combine": {"accumulate=fp32"},
    }
    assert all(node.explained for node in result.nodes)
    assert (result.program, unseen(result)) == ("torchtitan", {"cache", "experts"})


def test_deepseeks_sites_are_named_and_nothing_innocent(traces: dict[Path, Path], deepseek_v3: Path) -> None:
    """Where autocast does nothing, as on CPU, all of the router is in bf16, in contrast to transformers' fp32."""
    result = explained(traces, deepseek_v3, f"layers[{FP32_GATE}].**")
    attend = answers_by_role(result).pop("layers[*].attention.attend")
    assert attend >= {"rotary:output=fp32", "layers[*].attention.rope:products=fp32", "implementation=sdpa"}
    assert {**answers_by_role(result), "layers[*].attention.attend": set[str]()} == {
        "layers[*].attention.norm": NORMS,
        "layers[*].attention.q_a_norm": NORMS,
        "layers[*].attention.kv_a_norm": NORMS,
        "layers[*].attention.attend": set(),
        "layers[*].moe.norm": NORMS,
        "layers[*].moe.gate": {"output=bf16"},
        "layers[*].moe.router": {"scores=bf16", "total=bf16", "quotient=bf16", "weights=bf16"},
        "layers[*].moe.combine": {"accumulate=fp32"},
    }
    assert all(node.explained for node in result.nodes)


def test_routes_that_go_round_are_no_choice_of_a_router(
    traces: dict[Path, Path], qwen3_moe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`debug.moe_force_load_balance`: nothing known gives these experts, and the combine of them is as elsewhere.

    With less work than users have it search.
    """
    monkeypatch.setattr(trace, "WORK", 2048)
    result = explained(traces, qwen3_moe, f"layers[{BALANCED}].moe.*")
    nodes = {role(node.node).rpartition(".")[2]: node for node in result.nodes}
    assert not nodes["router"].explained
    assert nodes["router"].left is not None
    assert nodes["router"].left.beyond_orders
    assert {name for name, node in nodes.items() if not node.explained} == {"router"}
    text = " ".join(printed(document(result)).split())
    assert f"layers[{BALANCED}].moe.router: none of the " in text
    assert "(no legal order explains them)" in text
