"""A trace of a model with Triton kernels of vLLM and SGLang in it, explained without being told which."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeparity.evidence.explain.report import Explanation
from moeparity.evidence.explain.trace import ExplainRequest, explain_trace
from moeparity.plan.address import role
from tests.engines.live import ask
from tests.engines.triton_kernels.case import FOLDERS, there

pytestmark = pytest.mark.live
SHAPE = (1, 7)


@pytest.fixture(scope="module")
def trace(qwen3_moe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("vllm", "sglang"):
        there(package)
    folder = tmp_path_factory.mktemp("triton") / "trace"
    case = {"kind": "trace", "checkpoint": str(qwen3_moe), "folder": str(folder), "shape": SHAPE}
    out = ask("triton_kernels.live_explained", FOLDERS["interpreter"], {"trace": case})
    assert out["trace"]["attended"].tolist() == [0]
    return folder


def first_answers(trace: Path, checkpoint: Path, nodes: str) -> dict[str, set[str]]:
    """The first answer at every node that hf-eager does not compute, without the node's own name."""
    result = explain_trace(ExplainRequest(trace=trace, checkpoint=checkpoint, nodes=(nodes,)))
    assert all(node.explained for node in result.nodes)
    return {
        node.node: {short(c, node) for c in node.matches[0].choices} for node in result.nodes if not node.as_started
    }


def short(choice: str, node: Explanation) -> str:
    return role(choice).removeprefix(f"{role(node.node)}:")


def test_sites_of_norms_attention_and_vllms_experts_are_named_and_nothing_innocent(
    trace: Path, qwen3_moe: Path
) -> None:
    """vLLM's and SGLang's norms round once, behind the weight. Seven keys are one tile: vLLM's attention is then what
    torch's sdpa computes. Its experts' weights meet the fp32 accumulator; the rows are added in fp32.
    """
    assert first_answers(trace, qwen3_moe, "layers[0].**") == {
        "layers[0].attention.norm": {"normalized=fp32"},
        "layers[0].attention.attend": {"implementation=sdpa"},
        "layers[0].moe.norm": {"normalized=fp32"},
        "layers[0].moe.combine": {"layers[*].moe.experts:score_site=epilogue", "accumulate=fp32"},
    }


def test_sites_of_sglangs_router_and_of_both_sums_are_named(trace: Path, qwen3_moe: Path) -> None:
    """SGLang divides the exponentials by their sum from left to right, as one block of eight does; vLLM weights and
    adds rows in fp32.
    """
    answers = first_answers(trace, qwen3_moe, "layers[1:3].moe.*")
    (denominator,) = answers["layers[1].moe.router"] & {"denominator=sequential", "denominator=blocks(8) | fold_hi"}
    assert answers == {
        "layers[1].moe.router": {"softmax=divide", denominator, "weights=fp32"},
        "layers[1].moe.combine": {"weighted=fp32", "accumulate=fp32"},
        "layers[2].moe.combine": {"layers[*].moe.experts:score_site=epilogue", "accumulate=fp32"},
    }
