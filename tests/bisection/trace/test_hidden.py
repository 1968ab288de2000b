"""What a comparison of logits would miss, or tell of the wrong place: each is named by the node that makes it."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from moeparity.bisection.pipeline import bisect
from moeparity.bisection.report import Report
from tests.evidence.traced import padding_doubled, recipe, reported, tokens


def _nodes(report: Report) -> set[str]:
    return {root.node for root in report.roots}


def _answer(report: Report) -> str:
    assert report.trace is not None
    return " ".join(report.trace.reading)


def cancelling(program: Any) -> None:
    """Queries twice as large, and scores scaled by half: powers of two, so that no bit of the attention changes."""
    attention = program.model.layers[1].self_attn
    attention.q_norm.weight.data.mul_(2)
    attention.scaling /= 2


def test_two_faults_that_cancel(qwen3_moe: Path, tmp_path: Path) -> None:
    report = reported(tmp_path, qwen3_moe, patch=cancelling)
    assert report.metrics.unequal_tokens == 0
    assert _nodes(report) == {"layers[1].attention.q_norm", "layers[1].attention.attend"}
    assert report.summary.starts.startswith("layers[1].attention.q_norm")
    assert "layers[1].attention.q_norm and layers[1].attention.attend, each by itself, and no" in report.summary.blame
    assert "cancels there" in _answer(report)


def chosen_once(program: Any, ids: torch.Tensor) -> tuple[int, int, int]:
    """A layer, and an expert there that a single token goes to, with that token."""
    routes: list[torch.Tensor] = []
    hooks = [layer.mlp.gate.register_forward_hook(lambda *a: routes.append(a[2][2])) for layer in program.model.layers]
    with torch.no_grad():
        program(ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    for number, chosen in enumerate(routes):
        counts = chosen.flatten().bincount(minlength=16)
        if (counts == 1).any():
            expert = int((counts == 1).nonzero()[0])
            return number, expert, int((chosen == expert).any(-1).nonzero()[0])
    raise AssertionError("no expert is chosen once")


def test_a_nan_that_is_born_in_one_expert(qwen3_moe: Path, tmp_path: Path) -> None:
    ids = tokens((2, 7))
    at: list[int] = []

    def poisoned(program: Any) -> None:
        at.extend(chosen_once(program, ids))
        program.model.layers[at[0]].mlp.experts.down_proj.data[at[1], 0, 0] = torch.nan

    report = reported(tmp_path, qwen3_moe, ids=ids, patch=poisoned)
    node = f"layers[{at[0]}].moe.combine"
    (root,) = report.roots
    assert (root.node, root.tokens) == (node, 1)
    assert report.verdict.status == "fail"
    assert report.summary.starts.startswith(f"NaN at {node}, sequence {at[2] // 7}, position {at[2] % 7}")


def test_one_rare_expert(qwen3_moe: Path, tmp_path: Path) -> None:
    ids = tokens((2, 7))
    at: list[int] = []

    def stale(program: Any) -> None:
        at.extend(chosen_once(program, ids))
        program.model.layers[at[0]].mlp.experts.down_proj.data[at[1]] *= 1.01

    report = reported(tmp_path, qwen3_moe, ids=ids, patch=stale)
    (root,) = report.roots
    assert (root.node, root.sequences, root.tokens) == (f"layers[{at[0]}].moe.combine", 1, 1)
    assert root.unshown == (f"layers[{at[0]}].moe.experts",)
    assert f"layers[{at[0]}].moe.experts too, which the trace does not show" in _answer(report)


def narrower(program: Any) -> None:
    """Half as many columns of a head are rotated."""
    config = deepcopy(program.config)
    config.rope_parameters["partial_rotary_factor"] /= 2
    program.model.rotary_emb = type(program.model.rotary_emb)(config)


def test_a_rotation_of_another_width(glm4_moe: Path, tmp_path: Path) -> None:
    report = reported(tmp_path, glm4_moe, patch=narrower)
    assert _nodes(report) == {"rotary"}
    assert report.verdict.status == "fail"


def test_a_fault_in_padding_alone(qwen3_moe: Path, tmp_path: Path) -> None:
    ids, mask, trace = padding_doubled(qwen3_moe, tmp_path)
    path = recipe(tmp_path, qwen3_moe, ids, trace)
    path.with_name("tokens.jsonl").write_text(
        "\n".join(f'{{"input_ids": {row[real.bool()].tolist()}}}' for row, real in zip(ids, mask, strict=True))
    )
    report = bisect(path, device="cpu")
    (root,) = report.roots
    assert (root.node, root.tokens, root.pads) == ("layers[2].moe.residual", 3, 3)
    assert report.metrics.unequal_tokens == 0
    assert "is of tokens that are not scored" in _answer(report)
