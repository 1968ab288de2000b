"""Padded batches explained: attention by the mask that was recorded, and nothing by what lies in padding."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity.evidence.explain.report import Explained
from moeparity.evidence.explain.trace import ExplainRequest, explain_trace
from tests.evidence.traced import captured, uneven

ATTEND = "layers[1].attention.attend"
LENGTHS = (9, 6, 2)


def explained(
    checkpoint: Path,
    folder: Path,
    *,
    at_left: bool,
    profile: str = "hf-eager",
    nodes: str = "layers[1].attention.*",
    **more: Any,
) -> Explained:
    """What is said of one forward over three sequences of uneven lengths."""
    ids, mask = uneven(LENGTHS, at_left=at_left)

    def masked(program: Any, ids: torch.Tensor) -> None:
        with torch.no_grad():
            program(ids, attention_mask=mask, use_cache=False)

    trace = captured(checkpoint, folder / "trace", ids, run=masked, profile=profile, **more)
    return explain_trace(ExplainRequest(trace=trace, checkpoint=checkpoint, profile=profile, nodes=(nodes,)))


@pytest.mark.parametrize(
    ("name", "at_left", "profile"),
    [
        ("qwen3_moe", True, "hf-default"),
        ("qwen3_moe", False, "hf-eager"),
        ("gpt_oss", True, "hf-eager"),
        ("deepseek_v3", False, "hf-default"),
    ],
)
def test_every_bit_of_attention_is_explained(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, at_left: bool, profile: str
) -> None:
    result = explained(request.getfixturevalue(name), tmp_path, at_left=at_left, profile=profile)
    by_node = {node.node: node for node in result.nodes}
    assert by_node[ATTEND].as_started
    assert all(node.as_started for node in result.nodes)
    assert by_node[ATTEND].padding[1] == 10
    assert result.taken[0] == "padding as its attention masks have it"


@pytest.mark.parametrize("at_left", [True, False])
def test_where_positions_begin_is_seen(qwen3_moe: Path, tmp_path: Path, at_left: bool) -> None:
    """transformers counts from the first column where nobody says otherwise."""
    (node,) = explained(qwen3_moe, tmp_path, at_left=at_left, nodes="rotary").nodes
    assert node.as_started


@pytest.mark.parametrize("at_left", [True, False])
def test_what_lies_in_padding_decides_nothing(qwen3_moe: Path, tmp_path: Path, at_left: bool) -> None:
    """Not even NaN there: of no node anything is named, and the padding is told."""
    _, mask = uneven(LENGTHS, at_left=at_left)

    def spoilt(program: Any) -> None:
        projection = program.model.layers[1].self_attn.q_proj
        inner = projection.forward
        projection.forward = lambda x: inner(x).masked_fill(mask[..., None] == 0, torch.nan)

    result = explained(qwen3_moe, tmp_path, at_left=at_left, patch=spoilt)
    assert all(node.as_started for node in result.nodes)
    (projection,) = (node for node in result.nodes if node.node == "layers[1].attention.q_proj")
    assert projection.padding == (10, 10)


def visible(program: Any, change: Any) -> None:
    """The mask that the layers go by, changed."""
    inner = program.model.forward

    def forward(*args: Any, attention_mask: torch.Tensor, **more: Any) -> Any:
        return inner(*args, attention_mask=change(attention_mask), **more)

    program.model.forward = forward


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (torch.ones_like, "padding-seen"),
        (lambda mask: mask[:, (torch.arange(9) - 1).clamp(0)], "mask-shifted(offset=1)"),
    ],
)
def test_a_fault_of_the_mask_has_its_name(qwen3_moe: Path, tmp_path: Path, change: Any, fault: str) -> None:
    result = explained(qwen3_moe, tmp_path, at_left=True, nodes=ATTEND, patch=partial(visible, change=change))
    (node,) = result.nodes
    assert node.matches[0].choices == (f"{ATTEND}:fault={fault}",)
