"""Shipped maps on every kind of model: what a map says of other kinds says nothing of this one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moeparity.documents.checked import shipped
from moeparity.errors import Where
from moeparity.evidence.maps.module_map import load_map
from moeparity.evidence.trace.records import Call
from moeparity.plan.config import Config
from moeparity.plan.expand import expand
from tests.small_models import SMALL


@pytest.mark.parametrize("model", SMALL)
@pytest.mark.parametrize("name", shipped("maps"))
def test_what_refuses_another_model_is_shown_by_this_one(name: str, model: str, tmp_path: Path) -> None:
    """By `every` a trace is taken for one of another model: what it lists of values that this model has is shown."""
    (tmp_path / "config.json").write_text(json.dumps(SMALL[model]), "utf-8")
    graph = expand(Config(tmp_path / "config.json"))
    module_map = load_map(name, Where(shipped("maps")[name]))
    shown = {(place.module, place.side) for places in module_map.on(graph).values() for place in places}
    values = {value for node in graph.nodes for value in node.values}
    listed = {(path, side) for path, side, value in module_map.every(graph.model_type, graph.layers) if value in values}
    assert shown
    assert listed - shown == set()


def test_values_are_named_without_a_checkpoint() -> None:
    """What a norm gives is the block's that the layer has; of columns side by side the first counts."""
    calls = [
        _call("model.layers.3.mlp.gate", {"input": 1}, {"0": 2}),
        _call("model.layers.3.post_attention_layernorm", {"0": 4, "1": 5}, {"0": 1, "1": 6}),
        _call("model.layers.4.input_layernorm", {"0": 7}, {"0": 8, "1": 9}),
        _call("model.layers.4.post_attention_layernorm", {"0": 10}, {"0": 11}),
        _call("model.layers.3.self_attn.qkv_proj", {"0": 8}, {"0": 12}),
        _call("model.embed_tokens", {"0": 13}, {"0": 14}),
    ]
    names = load_map("vllm", Where(shipped("maps")["vllm"])).names(calls)
    assert names[2] == "layers[3].moe.gate"
    assert names[1] == "layers[3].moe.norm"
    assert names[6] == "layers[3].attention.residual"
    assert names[9] == "layers[3].moe.residual"
    assert names[11] == "layers[4].mlp.norm"
    assert names[12] == "layers[3].attention.q_proj"
    assert names[14] == "embed"
    assert not {4, 5, 7, 10, 13} & names.keys()


def _call(path: str, inputs: dict[str, int], outputs: dict[str, int]) -> Call:
    return Call(id=0, level="module", name="Module", path=path, inputs=inputs, outputs=outputs)
