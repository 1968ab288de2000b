"""What a comparison of logits would miss is explained where it is made: faults that cancel, and one in padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moeparity.evidence.explain.report import Explanation
from moeparity.evidence.explain.text import explained_lines
from moeparity.evidence.explain.trace import Request, explain_trace
from tests.bisection.trace.test_hidden import cancelling
from tests.evidence.traced import captured, padding_doubled, tokens


def _explained(trace: Path, checkpoint: Path, node: str) -> Explanation:
    (explanation,) = explain_trace(Request(trace=trace, checkpoint=checkpoint, nodes=node)).nodes
    return explanation


def test_of_two_faults_that_cancel_the_first_is_named_and_what_follows_is_innocent(
    qwen3_moe: Path, tmp_path: Path
) -> None:
    """Queries twice as large and scores halved leave every logit as it is."""
    trace = captured(qwen3_moe, tmp_path / "trace", tokens((2, 7)), patch=cancelling)
    norm = _explained(trace, qwen3_moe, "layers[1].attention.q_norm")
    assert norm.matches[0].choices == ("layers[1].attention.q_norm:fault=weights-scaled(factor=2.0)",)
    assert _explained(trace, qwen3_moe, "layers[1].attention.k_norm").as_started
    assert _explained(trace, qwen3_moe, "layers[1].attention.o_proj").as_started


def test_a_fault_in_padding_alone_decides_nothing_and_is_told_with_its_extent(qwen3_moe: Path, tmp_path: Path) -> None:
    _, _, trace = padding_doubled(qwen3_moe, tmp_path)
    result = explain_trace(Request(trace=trace, checkpoint=qwen3_moe, nodes="layers[2].moe.*"))
    by_name = {node.node: node for node in result.nodes}
    assert all(node.as_started for node in result.nodes)
    assert by_name["layers[2].moe.residual"].padding == (3, 3)
    assert by_name["layers[2].moe.reduce"].padding == (0, 3)
    text = "\n".join(explained_lines(result))
    assert text.count("of padding, which decides nothing, 3 of 3 tokens have other bits") == 1


def some_exchanged(program: Any) -> None:
    """Gate and up of every third expert in layer 2 stand in each other's place, which no file lists of some alone."""
    weight = program.model.layers[2].mlp.experts.gate_up_proj.data
    weight[::3] = weight[::3].roll(weight.shape[1] // 2, 1)


def test_what_is_left_is_told_of_what_is_called_nearest(qwen3_moe: Path, tmp_path: Path) -> None:
    trace = captured(qwen3_moe, tmp_path / "trace", tokens((2, 7)), patch=some_exchanged)
    node = _explained(trace, qwen3_moe, "layers[2].moe.combine")
    assert not node.explained
    assert node.left is not None
    assert node.left.differing == pytest.approx(1 - max(node.as_it_is, node.matches[0].equal))
