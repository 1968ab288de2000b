"""The maps of vLLM and SGLang: what their modules would hold of each model type is read back, value by value.

Neither runs here. That their modules are so called is held to their own models by test_live_vllm.py and
test_live_sglang.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moeparity.engine.forward import forward
from moeparity.errors import Where
from moeparity.evidence.maps.forwards import module_calls
from moeparity.evidence.maps.module_map import map_of
from moeparity.evidence.trace.reader import open_trace
from moeparity.numerics.bits import same_bits
from moeparity.plan.address import file_key
from tests.evidence.node_values import values_at
from tests.evidence.written import written
from tests.hf.compare import opened, tokens

MODELS = ("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3")
KNOWN_BY = {"vllm": "MLAAttention", "sglang": "RadixAttention"}


@pytest.mark.parametrize("program", KNOWN_BY)
@pytest.mark.parametrize("name", MODELS)
def test_values_are_read_back(request: pytest.FixtureRequest, tmp_path: Path, program: str, name: str) -> None:
    model = opened(request.getfixturevalue(name))
    ids = tokens(model.vocab_size, (2, 5))
    folder = written(tmp_path / "trace", model, ids, program=program, name=KNOWN_BY[program])
    trace = open_trace(folder).ranks[0]
    assert map_of(module_calls(trace), Where(folder)).file.program == program
    computed = forward(model, ids, profile="hf-eager", dtype="bf16", save=["**"])
    shown = values_at(trace, model.graph)
    closing = {f"layers[{i}].{block}.residual" for i in range(model.graph.layers) for block in ("attention",)}
    assert closing <= shown.keys()
    for node in model.graph.nodes:
        for value, tensor in zip(node.values, shown[node.name].outputs if node.name in shown else (), strict=False):
            assert tensor is None or same_bits(tensor, computed[file_key(value)]), value


def test_another_order_of_columns_is_seen(qwen3_moe: Path, tmp_path: Path) -> None:
    """What a wrong map would give: keys where queries are."""
    model = opened(qwen3_moe)
    ids = tokens(model.vocab_size, (2, 5))
    folder = written(tmp_path / "trace", model, ids, program="vllm", name="MLAAttention")
    shown = values_at(open_trace(folder).ranks[0], model.graph)
    query = shown["layers[0].attention.q_proj"].outputs[0]
    key = shown["layers[0].attention.k_proj"].outputs[0]
    assert query is not None
    assert key is not None
    assert query.shape[2:] == (4, 32)
    assert key.shape[2:] == (2, 32)
    assert not torch.equal(query[:, :, :2], key)
