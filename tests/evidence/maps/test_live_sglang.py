"""The map and the layout of SGLang against SGLang 0.5.23's own models, built here: their modules' names, on the meta
device, and what each rank loads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moeparity.errors import Where
from moeparity.evidence.maps.module_map import LAYER, load_map
from moeparity.evidence.weights.compare import compare
from moeparity.evidence.weights.fingerprint_files import open_weights
from moeparity.plan.address import role
from tests.engines.live import Found, ask
from tests.evidence.maps.test_live_vllm import INSIDE, SHARED
from tests.evidence.weights.programs import grouped, job
from tests.hf.compare import opened

pytestmark = pytest.mark.live
MODELS = ("qwen3_moe", "mixtral", "qwen2_moe_plain", "olmoe", "glm4_moe", "deepseek_v3_yarn", "gpt_oss")
WITH_DENSE_LAYER = "qwen2_moe"


CUTS = {"cut": (1, 1), "whole": (4, 1), "apart": (1, 2), "each": (4, 4)}
"""Of four ranks, over how many experts lie as wholes, and how many groups attend apart."""


@pytest.fixture(scope="module")
def cut_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return grouped(tmp_path_factory.mktemp("cut") / "checkpoint", dense=False)


@pytest.fixture(scope="module")
def modules(request: pytest.FixtureRequest, cut_checkpoint: Path) -> Found:
    names = (*MODELS, WITH_DENSE_LAYER)
    cases: dict[str, dict[str, Any]] = {
        f"{cut} {rank}": {
            "kind": "loaded", "folder": str(cut_checkpoint), "rank": rank, "ranks": 4, "expert": expert,
            "groups": groups,
        }
        for cut, (expert, groups) in CUTS.items() for rank in range(4)
    }  # fmt: skip
    cases |= {name: {"kind": "names", "folder": str(request.getfixturevalue(name))} for name in names}
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


@pytest.mark.parametrize("cut", CUTS)
def test_what_each_rank_loads_is_what_the_layout_says(modules: Found, cut_checkpoint: Path, cut: str) -> None:
    expert, groups = CUTS[cut]
    ranks = [modules[f"{cut} {rank}"] for rank in range(4)]
    weights = job(ranks, experts=expert > 1, layout="sglang", checkpoint=cut_checkpoint, groups=groups)
    report = compare(open_weights(cut_checkpoint), weights)
    assert (report.exit_code, report.findings, report.aside) == (0, (), ())
    assert report.equal == report.compared == 45


def test_sglang_has_no_dense_layers_of_qwen(modules: Found) -> None:
    """`mlp_only_layers: [0]` is not read: SGLang builds experts there too. A map can show nothing of such a layer."""
    assert "model.layers.0.mlp.experts" in modules[WITH_DENSE_LAYER]
    assert "model.layers.0.mlp.gate_up_proj" not in modules[WITH_DENSE_LAYER]
