"""What a comparison of logits would miss is explained where it is made: faults that cancel, and one in padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moeparity.evidence.explain.report import Explanation
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


def test_a_fault_in_padding_alone_is_not_explained_and_is_told_with_its_extent(qwen3_moe: Path, tmp_path: Path) -> None:
    _, _, trace = padding_doubled(qwen3_moe, tmp_path)
    node = _explained(trace, qwen3_moe, "layers[2].moe.residual")
    assert not node.explained
    assert node.left is not None
    # Three of fourteen tokens, but for elements that are 0.
    assert 0.2 < node.left.differing <= 3 / 14
    # What is left is that of what is called nearest: here the profile itself, since nothing tried comes nearer.
    assert node.as_it_is >= max(match.equal for match in node.matches)
    assert node.left.differing == pytest.approx(1 - node.as_it_is)


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
