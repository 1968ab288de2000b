"""The map of transformers: every value that it names has the bits of the node, for all model types, run live."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moeparity.engine.forward import forward
from moeparity.evidence.trace.reader import RankTrace, open_trace
from moeparity.inputs.model import Model
from moeparity.numerics.bits import same_bits
from moeparity.plan.address import file_key, role
from tests.evidence.node_values import values_at
from tests.evidence.recorded import recorded
from tests.hf.compare import opened, tokens
from tests.hf.reference import load

MODELS = ("qwen2_moe", "qwen3_moe_mha", "olmoe_clip", "gpt_oss", "deepseek_v3_yarn")
"""tests/bisection/trace/test_parity.py holds all model types to the same."""

INSIDE = {"rope", "cache", "experts", "q_split", "kv_split", "q_clip", "k_clip", "v_clip", "log_probs", "shared"}
INSIDE |= {"combine_reduce", "shared_add", "shared_reduce"}
"""Nodes that no module shows."""


def captured(model: Model, ids: torch.Tensor, folder: Path) -> RankTrace:
    program = load(model.folder, "hf-eager", torch.bfloat16)
    with recorded(folder), torch.no_grad():
        program(ids, attention_mask=torch.ones_like(ids), use_cache=False)
    return open_trace(folder).ranks[0]


@pytest.mark.parametrize("name", MODELS)
def test_every_value_has_the_nodes_bits(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> None:
    model = opened(request.getfixturevalue(name))
    ids = tokens(model.vocab_size, (2, 5))
    shown = values_at(captured(model, ids, tmp_path / "trace"), model.graph)
    computed = forward(model, ids, profile="hf-eager", dtype="bf16", save=["**"])
    for node in model.graph.nodes:
        for value, tensor in zip(node.values, shown[node.name].outputs if node.name in shown else (), strict=False):
            if tensor is not None:
                assert same_bits(tensor, computed[file_key(value)]), value
    unknown = {role(node.name).rpartition(".")[2] for node in model.graph.nodes if node.name not in shown}
    assert unknown <= INSIDE
