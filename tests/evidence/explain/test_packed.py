"""Rows of several sequences explained, as trainers without padding compute them: by positions that begin anew."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from moeparity.evidence.alignment.tokens import tokens_in
from moeparity.evidence.explain.faults import PLANTED
from moeparity.evidence.explain.replaced import Choices
from moeparity.evidence.explain.report import Explained
from moeparity.evidence.explain.sample import Sample
from moeparity.evidence.explain.trace import ExplainRequest, explain_trace
from moeparity.inputs.model import Model
from moeparity.numerics.bits import same_bits
from moeparity.plan.bound import Plan
from tests.evidence.explain.observed import Seen, kernels_of, seen_under
from tests.evidence.traced import captured, tokens

ATTEND = "layers[1].attention.attend"
LENGTHS = (5, 1, 9, 6)


def positions_of(*rows: tuple[int, ...]) -> Tensor:
    """Positions [rows, T] that begin anew with each sequence of a row."""
    return torch.stack([torch.cat([torch.arange(length) for length in lengths]) for lengths in rows])


def explained(
    checkpoint: Path, folder: Path, *rows: tuple[int, ...], profile: str = "hf-eager", mask: bool = False, **more: Any
) -> Explained:
    """What is said of one forward over rows of sequences of these lengths; with `mask`, one that sees every token."""
    positions = positions_of(*rows)
    ids = tokens((positions.shape[0], positions.shape[1]))

    def run(program: Any, ids: Tensor) -> None:
        with torch.no_grad():
            every = torch.ones_like(ids) if mask else None
            program(ids, attention_mask=every, position_ids=positions, use_cache=False)

    trace = captured(checkpoint, folder / "trace", ids, run=run, profile=profile)
    return explain_trace(ExplainRequest(trace=trace, checkpoint=checkpoint, profile=profile, **more))


@pytest.mark.parametrize(
    ("name", "profile", "rows"),
    [
        ("qwen3_moe", "hf-default", (LENGTHS,)),
        ("qwen3_moe", "hf-eager", (LENGTHS, (8, 8, 5))),
        ("olmoe", "hf-eager", ((1, 1, 12),)),
        ("deepseek_v3", "hf-default", (LENGTHS,)),
    ],
)
def test_every_bit_of_a_pack_is_explained(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, profile: str, rows: tuple[tuple[int, ...], ...]
) -> None:
    result = explained(request.getfixturevalue(name), tmp_path, *rows, profile=profile)
    by_node = {node.node: node for node in result.nodes}
    assert by_node[ATTEND].as_started
    assert by_node["rotary"].as_started
    assert all(node.as_started for node in result.nodes)
    assert result.taken[-1] == "that a sequence begins where they begin anew, and sees itself alone"


@pytest.mark.parametrize(("name", "mask"), [("qwen3_moe", True), ("deepseek_v3", True), ("gpt_oss", False)])
def test_a_pack_without_its_mask_is_named_with_its_first_token(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, mask: bool
) -> None:
    """With a mask of ones, transformers lets each token see the sequences before its own. Its gpt_oss does so without
    one, too: its model gives no positions to what makes the mask (transformers 5.23.0, models/gpt_oss).
    """
    result = explained(request.getfixturevalue(name), tmp_path, LENGTHS, mask=mask, nodes=(ATTEND,))
    (node,) = result.nodes
    assert node.matches[0].exact
    assert node.matches[0].choices == (f"{ATTEND}:fault=pack-seen",)
    assert node.extent is not None
    assert (node.extent.differing, node.extent.first.sequence, node.extent.first.position) == (16, 1, 0)


def test_kernels_for_sequences_of_various_lengths_compute_each_by_itself(model: Model, eager: Plan) -> None:
    """FlashAttention's tiles begin at each sequence's own first key: a pack is its sequences one behind the other."""
    flash: Choices = frozenset([((ATTEND, "implementation"), "flash"), ((ATTEND, "kv_block"), 4)])
    node_values = seen_under(model, eager, (1, sum(LENGTHS)))[ATTEND]
    kernels, observation = kernels_of(eager, node_values)
    whole = observation.sample(kernels.replaced.nodes)
    sequences = torch.arange(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS))[None]
    by_sequence = {**whole.values, "mask": sequences[:, :, None] == sequences[:, None]}
    tokens_of_pack = tokens_in(sequences, positions=positions_of(LENGTHS))
    packed = Sample(values=by_sequence, results=whole.results, tokens=tokens_of_pack)
    axes = {value: node_values.node.op.tokens.input_axes.get(port, 1) for port, value in _ports(node_values)}
    (together,) = kernels.computed(flash, packed)
    parts: list[Tensor] = []
    for first, last in packed.spans:
        cut = partial(_cut, axes=axes, first=first, length=last - first)
        alone = Sample(values={v: cut(v, x) for v, x in whole.values.items()}, results=whole.results)
        parts += kernels.computed(flash, alone)
    assert same_bits(together, torch.cat(parts, 1))
    (in_one_row,) = kernels.computed(flash, whole)
    assert not same_bits(together, in_one_row)
    (opened,) = kernels.computed(frozenset([((ATTEND, "fault pack-seen"), PLANTED)]), packed)
    assert same_bits(opened, kernels.computed(frozenset(), whole)[0])


def _ports(node_values: Seen) -> list[tuple[str, str]]:
    return list(zip(node_values.node.ports, node_values.node.inputs, strict=False))


def _cut(value: str, tensor: Tensor, axes: dict[str, int], first: int, length: int) -> Tensor:
    return tensor.narrow(axes.get(value, 1), first, length)
