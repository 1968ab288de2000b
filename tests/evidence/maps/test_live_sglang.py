"""The map of SGLang against SGLang 0.5.23's own models, built here on the meta device: their modules' names."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeparity.errors import Where
from moeparity.evidence.maps.module_map import LAYER, load_map
from moeparity.plan.address import role
from tests.engines.live import Found, ask
from tests.evidence.maps.test_live_vllm import INSIDE, SHARED
from tests.hf.compare import opened

pytestmark = pytest.mark.live
MODELS = ("qwen3_moe", "mixtral", "qwen2_moe_plain", "olmoe", "glm4_moe", "deepseek_v3_yarn", "gpt_oss")
WITH_DENSE_LAYER = "qwen2_moe"


@pytest.fixture(scope="module")
def modules(request: pytest.FixtureRequest) -> Found:
    names = (*MODELS, WITH_DENSE_LAYER)
    cases = {name: {"kind": "names", "folder": str(request.getfixturevalue(name))} for name in names}
    folders = ("sglang", "sglang-needs", "sglang-arguments", "vllm-arguments", "triton")
    return ask("live_sglang_modules", folders, cases)


@pytest.mark.parametrize("name", MODELS)
def test_every_value_that_is_mapped_has_a_module_of_that_name(
    request: pytest.FixtureRequest, modules: Found, name: str
) -> None:
    folder: Path = request.getfixturevalue(name)
    graph = opened(folder).graph
    places = load_map("sglang", Where(folder)).on(graph)
    nowhere = {role(value) for value, shown in places.items() if not any(p.module in modules[name] for p in shown)}
    assert nowhere == set()
    unmapped = {role(value) for node in graph.nodes for value in node.values} - {role(value) for value in places}
    assert unmapped <= INSIDE | {"lm_head"} | (SHARED if f"layers{LAYER}.moe.shared_add" in unmapped else set())


def test_sglang_has_no_dense_layers_of_qwen(modules: Found) -> None:
    """`mlp_only_layers: [0]` is not read: SGLang builds experts there too. A map can show nothing of such a layer."""
    assert "model.layers.0.mlp.experts" in modules[WITH_DENSE_LAYER]
    assert "model.layers.0.mlp.gate_up_proj" not in modules[WITH_DENSE_LAYER]
