"""Traces of programs with kernels of others in them, explained without being told: their rounding sites are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeparity.evidence.explain.report import Explained, Explanation
from moeparity.evidence.explain.show import document
from moeparity.evidence.explain.trace import ExplainRequest, explain_trace
from tests.engines.live import ask
from tests.printed import printed

pytestmark = pytest.mark.live
LIGER = ("liger", "triton")
SHAPE = (1, 7)


@pytest.fixture(scope="module")
def liger(qwen3_moe: Path, tmp_path_factory: pytest.TempPathFactory) -> Explained:
    trace = tmp_path_factory.mktemp("liger") / "trace"
    case = {"kind": "trace", "checkpoint": str(qwen3_moe), "folder": str(trace), "shape": SHAPE}
    ask("live_explained", LIGER, {"trace": case})
    return explain_trace(ExplainRequest(trace=trace, checkpoint=qwen3_moe))


def by_node(result: Explained) -> dict[str, Explanation]:
    return {node.node: node for node in result.nodes}


def answer_of(node: Explanation) -> set[str]:
    """The first answer, or the nearest, without the node's name."""
    return {choice.rpartition(":")[2] for choice in node.matches[0].choices}


def test_sites_of_norms_and_sums_of_liger_are_named_and_nothing_innocent(liger: Explained) -> None:
    """gemma: one rounding behind the weight. llama: transformers' two. Weighted rows are added in fp32."""
    nodes = by_node(liger)
    assert [name for name, node in nodes.items() if not node.as_started] == [
        "layers[0].moe.norm",
        "layers[1].moe.combine",
        "layers[2].moe.norm",
        "layers[2].moe.combine",
    ]
    assert nodes["layers[0].moe.norm"].explained
    assert answer_of(nodes["layers[0].moe.norm"]) == {"normalized=fp32"}
    assert nodes["layers[1].moe.combine"].explained
    assert answer_of(nodes["layers[1].moe.combine"]) >= {"accumulate=fp32", "weighted=fp32"}


def test_all_sites_of_ligers_fused_experts_are_named(liger: Explained) -> None:
    """Projections stay in fp32 until the product of gate and up is rounded; weighted rows are added in fp32."""
    node = by_node(liger)["layers[2].moe.combine"]
    assert node.explained
    assert answer_of(node) >= {"projections=fp32", "accumulate=fp32", "weighted=fp32"}


def test_what_is_no_choice_of_a_node_is_said_to_be_none(liger: Explained) -> None:
    """`none` takes its statistic in 16 bits, for which no form is known."""
    node = by_node(liger)["layers[2].moe.norm"]
    assert not node.explained
    assert node.left is not None
    assert node.left.beyond_orders
    assert answer_of(node) >= {"normalized=fp32"}
    assert liger.exit_code == 1
    assert "layers[2].moe.norm: none of the " in printed(document(liger))
