"""What a comparison of logits would miss is explained where it is made: faults that cancel, and one in padding, of an
expert with a single token, and a NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from moeparity.evidence.explain.report import Explanation
from moeparity.evidence.explain.trace import ExplainRequest, explain_trace
from tests.bisection.trace.test_hidden import cancelling, chosen_once
from tests.command import inside
from tests.evidence.explain.observed import on_screen
from tests.evidence.traced import captured, padding_doubled, tokens


def _explained(trace: Path, checkpoint: Path, node: str) -> Explanation:
    (explanation,) = explain_trace(ExplainRequest(trace=trace, checkpoint=checkpoint, nodes=(node,))).nodes
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


@pytest.fixture
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no choice gives is searched for to the end: a sixteenth of it shows that."""
    monkeypatch.setattr("moeparity.evidence.explain.trace.WORK", 1024)


def _patched(checkpoint: Path, folder: Path, change: Callable[[Tensor], object]) -> tuple[Path, int, int, str]:
    """A trace in which `change` was made to the weights down of an expert that a single token went to: the trace, its
    layer, the expert, and the token as reports write it.
    """
    ids, at = tokens((2, 7)), list[int]()

    def patch(program: Any) -> None:
        at.extend(chosen_once(program, ids))
        change(program.model.layers[at[0]].mlp.experts.down_proj.data[at[1]])

    trace = captured(checkpoint, folder / "trace", ids, patch=patch)
    return trace, at[0], at[1], f"sequence {at[2] // 7}, position {at[2] % 7}"


def _nudge(weight: Tensor) -> None:
    weight[3] += 2**-6


def _poison(weight: Tensor) -> None:
    weight[5, 0] = torch.nan


@pytest.mark.usefixtures("_brief")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_poison, "; 1 element is NaN or infinite where finite ones are computed"),
        (_nudge, ""),
    ],
    ids=["a NaN", "some weights"],
)
def test_of_an_expert_with_one_token_the_node_the_token_and_the_expert_are_told(
    qwen3_moe: Path, tmp_path: Path, change: Callable[[Tensor], object], words: str
) -> None:
    """By the command, and of a change that no file lists."""
    trace, layer, expert, token = _patched(qwen3_moe, tmp_path, change)
    answer = inside("explain", trace, "--checkpoint", qwen3_moe, "--node", f"layers[{layer}].moe.*")
    assert answer.returncode == 1, answer.stderr
    opening, *_, closing = answer.stdout.strip().split("\n\n")
    report = " ".join(answer.stdout.split())
    node = report[report.index(f"layers[{layer}].moe.combine (with") :]
    assert "none of the " in node.split("; nearest")[0]
    assert (
        f" in 1 token of 14, at {token}{words} this token went to expert {expert}, no token with equal bits did" in node
    )
    assert opening == closing
    assert closing.splitlines()[0].endswith(f"1 not explained; exit {answer.returncode}")


def test_a_fault_of_an_expert_with_one_token_is_named_with_it(qwen3_moe: Path, tmp_path: Path) -> None:
    trace, layer, expert, _ = _patched(qwen3_moe, tmp_path, lambda weight: weight.mul_(0.75))
    answer = inside("explain", trace, "--checkpoint", qwen3_moe, "--node", f"layers[{layer}].moe.combine")
    assert answer.returncode == 0, answer.stderr
    assert f"fault: the weights down of expert {expert} are multiplied by 0.75" in answer.stdout


def test_a_fault_in_padding_alone_decides_nothing_and_is_told_with_its_extent(qwen3_moe: Path, tmp_path: Path) -> None:
    _, _, trace = padding_doubled(qwen3_moe, tmp_path)
    result = explain_trace(ExplainRequest(trace=trace, checkpoint=qwen3_moe, nodes=("layers[2].moe.*",)))
    by_name = {node.node: node for node in result.nodes}
    assert all(node.as_started for node in result.nodes)
    assert by_name["layers[2].moe.residual"].padding == (3, 3)
    assert by_name["layers[2].moe.reduce"].padding == (0, 3)
    text = on_screen(result)
    assert text.count("3 of 3 padding tokens have other bits, which does not count") == 1


def some_exchanged(program: Any) -> None:
    """Gate and up of every third expert in layer 2 stand in each other's place, which no file lists of some alone."""
    weight = program.model.layers[2].mlp.experts.gate_up_proj.data
    weight[::3] = weight[::3].roll(weight.shape[1] // 2, 1)


@pytest.mark.usefixtures("_brief")
def test_what_is_left_is_told_of_what_is_called_nearest(qwen3_moe: Path, tmp_path: Path) -> None:
    trace = captured(qwen3_moe, tmp_path / "trace", tokens((2, 7)), patch=some_exchanged)
    node = _explained(trace, qwen3_moe, "layers[2].moe.combine")
    assert not node.explained
    assert node.left is not None
    assert node.left.differing == pytest.approx(1 - max(node.as_it_is, node.matches[0].equal))
