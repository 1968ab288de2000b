"""Every choice of an adapter and every fault of one, planted on one side, is found as that and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from moeparity import bisect
from moeparity.bisection.options import Options
from moeparity.bisection.report import Report
from moeparity.ops.attribute import Attribute, Value
from moeparity.ops.declaration import Op
from moeparity.ops.registry import OPS
from tests.adapters import ATTENTION, EXPERTS, make_adapter
from tests.planted.places import random_tokens, write_recipe
from tests.planted.values import ADAPTER

NODES = {"linear": "layers[1].attention.v_proj", "experts": "layers[1].moe.experts"}
UNMERGED = {"adapter": "unmerged"}
# As peft has it, and in the model's dtype only what is planted.
WIDE: dict[str, Value] = dict.fromkeys(
    ("adapter_inputs", "adapter_inner", "adapter_product", "adapter_scaled", "adapter_sum"), "fp32"
)
SAME = {"linear:adapter_scaling=in_b", "experts:adapter_scaling=in_b"}
"""In fp32 the scaling, 4, is exact wherever it is multiplied in."""


def values() -> dict[str, tuple[Op, Attribute, Value]]:
    """Every value that says something else than the background."""
    return {
        f"{op.name}:{attribute.name}={value}": (op, attribute, value)
        for op in OPS.values()
        for attribute in op.attributes
        if attribute.parameter == ADAPTER
        for value in attribute.values
        if value not in (UNMERGED.get(attribute.name, attribute.default), "fp32")
        if not (attribute.kind == "rounding" and value == "model")
    }


@pytest.fixture(scope="module")
def adapter(qwen3_moe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    targets: dict[str, Any] = {"target_modules": ATTENTION, "target_parameters": EXPERTS}
    return make_adapter(qwen3_moe, tmp_path_factory.mktemp("adapter"), r=2, lora_alpha=8, **targets)


def reported(
    folder: Path, checkpoint: Path, adapter: Path, reference: Any, candidate: Any, ids: torch.Tensor | None = None
) -> Report:
    tokens = {"input_ids": random_tokens(2, 12) if ids is None else ids}
    recipe = write_recipe(folder, checkpoint, tokens, reference, candidate, adapter=adapter)
    return bisect(recipe, device="cpu", options=Options(floor=False))


@pytest.mark.parametrize("label", values())
def test_a_planted_value_is_found(label: str, tmp_path: Path, qwen3_moe: Path, adapter: Path) -> None:
    op, attribute, value = values()[label]
    node = NODES[op.name]
    background = {"output": "fp32", **UNMERGED, **WIDE}
    background |= {"adapter_scaling": "last"} if attribute.name != "adapter_scaling" else {}
    background.pop(attribute.name, None)
    before = {attribute.name: UNMERGED.get(attribute.name, "fp32" if attribute.kind == "rounding" else "last")}
    sides = ({**background, **before}, {**background, attribute.name: value})
    reference, candidate = ({"set": {f"{node}:{name}": to for name, to in side.items()}} for side in sides)
    report = reported(tmp_path, qwen3_moe, adapter, reference, candidate)
    (toggle,) = report.toggles
    assert toggle.name == f"{node}:{attribute.name}"
    exact = label in SAME or value == "fp64"
    if exact and toggle.had_no_effect:
        assert not report.roots
        return
    assert toggle.restores_all
    (root,) = report.roots
    assert (root.node, [choice.attribute for choice in root.choices]) == (node, [attribute.name])


FAULTS: dict[str, dict[str, Any]] = {
    "adapter-missing": {},
    "adapter-counted-by-ranks": {"times": 2},
    "adapter-of-another-step": {"adapter": "older"},
    "adapter-scaled-by-other-rank": {},
    "adapter-twice": {},
}


@pytest.fixture(scope="module")
def older(adapter: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("older")
    shutil.copy(adapter / "adapter_config.json", folder)
    name = "adapter_model.safetensors"
    save_file({key: x * 0.5 for key, x in load_file(adapter / name).items()}, folder / name)
    return folder


@pytest.mark.parametrize("node", NODES.values())
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("shape", [(3, 9), (1, 2)])
def test_a_fault_is_blamed_beside_roundings(
    name: str, node: str, shape: tuple[int, int], tmp_path: Path, qwen3_moe: Path, adapter: Path, older: Path
) -> None:
    """Of several micro-batches, and of one scored token; the server rounds elsewhere, too."""
    values = {key: str(older) if value == "older" else value for key, value in FAULTS[name].items()}
    fault = {"name": name, "nodes": node, "values": values}
    rounds = {"set": {f"{NODES['linear'].replace('[1]', '[*]')}:adapter_product": "bf16"}}
    candidate = {"micro_batch": 2, "faults": [fault], **rounds}
    report = reported(tmp_path, qwen3_moe, adapter, {"micro_batch": 2}, candidate, random_tokens(*shape))
    (of_fault,) = (toggle for toggle in report.toggles if toggle.name.startswith("fault "))
    assert of_fault.name.startswith(f"fault {name}")
    assert not of_fault.had_no_effect
    assert name in report.summary.blame
    assert name in report.summary.to_set


def test_a_missing_adapter_of_a_rare_expert_shows_at_its_tokens_alone(
    tmp_path: Path, qwen3_moe: Path, adapter: Path
) -> None:
    """An adapter of zeros but for one expert: without it only tokens that go there differ at that node."""
    folder = tmp_path / "rare"
    shutil.copytree(adapter, folder)
    name, experts, rare = "adapter_model.safetensors", 16, 5
    tensors = load_file(folder / name)
    for key, x in tensors.items():
        of_expert = torch.arange(x.shape[1] if key.endswith("lora_B.weight") else 0) % experts == rare
        if ".experts." in key and len(of_expert):  # B of all experts
            tensors[key] = x * of_expert
    save_file(tensors, folder / name)
    fault = {"name": "adapter-missing", "nodes": NODES["experts"]}
    report = reported(tmp_path, qwen3_moe, folder, {}, {"faults": [fault]}, random_tokens(4, 16))
    (root,) = report.roots
    assert root.node == NODES["experts"]
    assert 0 < root.tokens < 4 * 16
    assert json.loads((folder / "adapter_config.json").read_text("utf-8"))["r"] == 2
