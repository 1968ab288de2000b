"""Every shipped fault, planted in a recipe: the bisection gets to its end, names the node, and restores all bits."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from moeparity import bisect
from moeparity.bisection.options import Options
from moeparity.inputs.model import Model
from moeparity.inputs.weights.formats import FORMATS
from moeparity.inputs.weights.quantise import quantise
from moeparity.plan.faults.fault import Fault
from moeparity.plan.faults.plant import candidates, domain, start
from moeparity.plan.faults.reader import shipped_faults
from moeparity.plan.graph import Node
from tests.opened import opened
from tests.planted.places import random_tokens, write_recipe

MODELS = (
    "qwen2_moe",
    "deepseek_v3_yarn",
    "gpt_oss",
    "olmoe_clip",
    "gated",
    "deepseek_v32",
    "mistral4",
    "llama4",
    "quantised",
    "in_nvfp4",
    "laguna",
    "longcat_flash",
)
# Left padding, without which some of them change nothing.
TOKENS = {"input_ids": random_tokens(3, 8), "attention_mask": torch.ones(3, 8, dtype=torch.int64)}
TOKENS["attention_mask"][1, :3] = 0
# So that a width or a block is none the model has, a window is narrower, and an expert takes fewer tokens than are
# sent to it.
VALUES: dict[str, dict[str, Any]] = {
    "rotary-width": {"width": 6},
    "rope-width": {"width": 6},
    "window": {"window": 2},
    "capacity-drop": {"capacity": 1},
    "experts-per-token": {"count": 1},
    "scales-of-another-size": {"size": 64},
}
PACKED = ("pack-seen", "state-unreset")
SHORT = Options(floor=False)
# Each part of a report looks at values in its own way, and those of this fault have another size.
LONG = {"rotary-width": Options(attribute=True, oracle=True, replay=True, envelope=2)}


def sites(model: Model, name: str) -> list[tuple[Node, Fault]]:
    """The nodes of a model at which a fault can sit, in the order of the graph."""
    every = ((node, fault) for node in model.graph.nodes for fault in candidates(model.graph, node))
    return [(node, fault) for node, fault in every if fault.name == name]


def values_of(model: Model, node: Node, fault: Fault, checkpoint: Path) -> dict[str, Any]:
    """Values for all that a fault leaves open."""
    values: dict[str, Any] = {}
    for number, (name, free) in enumerate(fault.free.items()):
        options = domain(model.graph, node, free)
        if free.type == "checkpoint":
            values[name] = str(checkpoint)
        elif free.type == "order":
            values[name] = [int(place) for place in str((options or ())[0]).split()]
        elif free.default is None:
            values[name] = start(node, free) * 2 + 1 if options is None else options[-1 - number % len(options)]
    return values | VALUES.get(fault.name, {})


def shrunk(checkpoint: Path, folder: Path) -> Path:
    """The same model with other weights."""
    folder.mkdir()
    shutil.copy(checkpoint / "config.json", folder)
    tensors = load_file(checkpoint / "model.safetensors")
    # By no power of two, which a norm behind a projection would take out again without a trace.
    smaller = {name: (tensor.float() * 0.6).to(tensor.dtype) for name, tensor in tensors.items()}
    save_file(smaller, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def quantised(qwen3_moe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quantised") / "model"
    quantise(qwen3_moe, FORMATS["fp8-blocks"], folder, 32)
    return folder


@pytest.fixture(scope="module")
def in_nvfp4(qwen3_moe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in_nvfp4") / "model"
    quantise(qwen3_moe, FORMATS["nvfp4-packed"], folder, 16)
    return folder


# Those of adapters are planted beside one, in tests/planted/test_adapters.py.
@pytest.mark.parametrize("name", sorted(name for name in shipped_faults() if not name.startswith("adapter-")))
def test_a_fault_is_found_where_it_stands(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    for folder in map(request.getfixturevalue, MODELS):
        model = opened(folder)
        if places := sites(model, name):
            break
    node, fault = places[0]
    checkpoint = shrunk(folder, tmp_path / "other") if name.endswith("another-checkpoint") else folder
    planted = {"name": name, "nodes": node.name, "values": values_of(model, node, fault, checkpoint)}
    # In a pack there is no padding, and nowhere else are there other sequences to be seen or gone on from.
    steps: dict[str, Any] = {"schedule": {"pack": {"length": 40}}} if name in PACKED else {"micro_batch": 3}
    recipe = write_recipe(tmp_path, folder, TOKENS, steps, {**steps, "faults": [planted]})
    report = bisect(recipe, device="cpu", opener=opened, options=LONG.get(name, SHORT))
    assert [root.node for root in report.roots] == [node.name]
    (toggle,) = report.toggles
    assert toggle.restores_all
    assert not toggle.had_no_effect
    assert report.summary.blame == f"{toggle.name} makes all of it"


def test_a_pack_that_is_seen_in_all_layers_is_one_without_its_mask(tmp_path: Path, qwen3_moe: Path) -> None:
    open_pack = {"schedule": {"pack": {"length": 40, "mask": "none", "positions": "reset"}}}
    faulty = {"schedule": {"pack": {"length": 40}}, "faults": [{"name": "pack-seen"}]}
    report = bisect(write_recipe(tmp_path, qwen3_moe, TOKENS, open_pack, faulty), device="cpu", options=SHORT)
    assert report.metrics.unequal_tokens == 0
    assert report.summary.blame.startswith("fault pack-seen and schedule:mask act, and no scored token's")


@pytest.mark.parametrize("name", ["shared-expert-missing", "shared-expert-twice"])
@pytest.mark.parametrize("later", ["layers[*].moe.shared_reduce:reduce", "layers[*].moe.combine_reduce:reduce"])
def test_a_fault_takes_what_lies_in_partial_sums(name: str, later: str, tmp_path: Path, qwen2_moe: Path) -> None:
    """On ranks that add routed and shared experts up together: the same model, rounded otherwise."""
    side = {"micro_batch": 3, "dtype": "fp32"}
    faults = [{"name": name, "nodes": "layers[1].moe"}]
    cut = {**side, "placement": {"tensor": 2}, "set": {later: "later"}, "faults": faults}
    recipe = write_recipe(tmp_path, qwen2_moe, TOKENS, {**side, "faults": faults}, cut)
    report = bisect(recipe, device="cpu", opener=opened, options=SHORT)
    # Both sides make the mistake, so that rounding is all that is left.
    assert 0 < report.metrics.kl < 1e-9
