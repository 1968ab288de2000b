"""Faults of LoRA adapters: a plan with the fault has the bits of a plain plan on what the fault makes of the files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from moeparity.inputs.model import Model, open_model
from moeparity.numerics.bits import same_bits
from tests.adapters import ATTENTION, EXPERTS, make_adapter
from tests.engine.faulty import Values, fault, plan_of, walk
from tests.planted.places import random_tokens

IDS = random_tokens(2, 11, vocab=300)
ALPHA, RANK = 6, 4
CONFIG, MATRICES = "adapter_config.json", "adapter_model.safetensors"


@pytest.fixture(scope="module")
def adapter(qwen3_moe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    targets: dict[str, Any] = {"target_modules": ATTENTION, "target_parameters": EXPERTS}
    return make_adapter(qwen3_moe, tmp_path_factory.mktemp("adapter"), r=RANK, lora_alpha=ALPHA, **targets)


def values_of(model: Model, name: str | None = None, **of: Any) -> Values:
    faults = [] if name is None else [fault(name, **of)]
    walked, _ = walk(model, {"it": plan_of(model, faults)}, IDS)
    return walked["it"]


def with_config(adapter: Path, folder: Path, **fields: Any) -> Path:
    folder.mkdir()
    shutil.copy(adapter / MATRICES, folder)
    config = json.loads((adapter / CONFIG).read_text("utf-8"))
    (folder / CONFIG).write_text(json.dumps({**config, **fields}), "utf-8")
    return folder


def opened(checkpoint: Path, adapter: Path | None) -> Model:
    return open_model(checkpoint, device="cpu", adapter=adapter, values=False)


def assert_same(ours: Values, by_hand: Values, fresh: Values) -> None:
    assert [name for name in by_hand if not same_bits(ours[name], by_hand[name])] == []
    assert not same_bits(ours["lm_head"], fresh["lm_head"])


def test_missing_everywhere_is_the_model_without_it(qwen3_moe: Path, adapter: Path) -> None:
    model = opened(qwen3_moe, adapter)
    assert_same(values_of(model, "adapter-missing"), values_of(opened(qwen3_moe, None)), values_of(model))


def test_missing_on_experts_alone_is_an_adapter_without_their_matrices(
    qwen3_moe: Path, adapter: Path, tmp_path: Path
) -> None:
    model = opened(qwen3_moe, adapter)
    folder = with_config(adapter, tmp_path / "attention", target_parameters=None)
    matrices = load_file(adapter / MATRICES)
    save_file({name: x for name, x in matrices.items() if ".experts." not in name}, folder / MATRICES)
    ours = values_of(model, "adapter-missing", nodes="layers[*].moe.experts")
    assert_same(ours, values_of(opened(qwen3_moe, folder)), values_of(model))


@pytest.mark.parametrize(
    ("name", "values", "fields"),
    [
        ("adapter-counted-by-ranks", {"times": 4}, {"lora_alpha": 4 * ALPHA}),
        ("adapter-scaled-by-other-rank", {}, {"use_rslora": True}),
    ],
)
def test_a_wrong_scaling_is_that_of_another_configuration(
    qwen3_moe: Path, adapter: Path, tmp_path: Path, name: str, values: dict[str, Any], fields: dict[str, Any]
) -> None:
    model = opened(qwen3_moe, adapter)
    by_hand = opened(qwen3_moe, with_config(adapter, tmp_path / "other", **fields))
    assert_same(values_of(model, name, values=values), values_of(by_hand), values_of(model))


def test_a_stale_adapter_is_the_older_one(qwen3_moe: Path, adapter: Path, tmp_path: Path) -> None:
    model = opened(qwen3_moe, adapter)
    older = with_config(adapter, tmp_path / "older")
    save_file({name: x * 0.75 for name, x in load_file(adapter / MATRICES).items()}, older / MATRICES)
    ours = values_of(model, "adapter-of-another-step", values={"adapter": str(older)})
    assert_same(ours, values_of(opened(qwen3_moe, older)), values_of(model))


def in_attention(tensors: dict[str, torch.Tensor], of: Callable[[str], torch.Tensor]) -> None:
    for name in ATTENTION:
        weight, at = f"model.layers.1.self_attn.{name}.weight", f"model.layers.1.self_attn.{name}"
        delta = of(f"{at}.lora_B.weight") @ of(f"{at}.lora_A.weight") * (ALPHA / RANK)
        tensors[weight] = (tensors[weight].float() + delta).bfloat16()


def in_experts(tensors: dict[str, torch.Tensor], of: Callable[[str], torch.Tensor]) -> None:
    at, experts = "model.layers.1.mlp.experts", 16
    for names, module in ((("gate_proj", "up_proj"), f"{at}.base_layer"), (("down_proj",), at)):
        a, b = of(f"{module}.lora_A.weight").bfloat16(), of(f"{module}.lora_B.weight").bfloat16()
        stack = torch.stack([torch.cat([tensors[f"{at}.{e}.{name}.weight"] for name in names]) for e in range(experts)])
        b = b.reshape(len(b), RANK, experts).permute(2, 0, 1)
        whole = torch.baddbmm(stack, b, a.reshape(experts, RANK, -1), alpha=ALPHA / RANK)
        for expert in range(experts):
            for name, rows in zip(names, whole[expert].chunk(len(names)), strict=True):
                tensors[f"{at}.{expert}.{name}.weight"] = rows.contiguous()


@pytest.mark.parametrize(("nodes", "merge"), [("attention.*_proj", in_attention), ("moe.experts", in_experts)])
def test_an_adapter_applied_twice_is_one_beside_weights_that_hold_it(
    qwen3_moe: Path, adapter: Path, tmp_path: Path, nodes: str, merge: Callable[..., None]
) -> None:
    matrices, tensors = load_file(adapter / MATRICES), load_file(qwen3_moe / "model.safetensors")
    merge(tensors, lambda name: matrices[f"base_model.model.{name}"])
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    shutil.copy(qwen3_moe / "config.json", tmp_path)
    model = opened(qwen3_moe, adapter)
    ours = values_of(model, "adapter-twice", nodes=f"layers[1].{nodes}")
    assert_same(ours, values_of(opened(tmp_path, adapter)), values_of(model))


def test_a_fault_of_all_weights_leaves_the_adapter_alone(qwen3_moe: Path, adapter: Path) -> None:
    model = opened(qwen3_moe, adapter)
    plan = plan_of(model, [fault("weights-scaled", nodes="layers[0].attention.q_proj", values={"factor": 2.0})])
    node = plan.as_run(next(node for node in model.graph.nodes if node.name == "layers[0].attention.q_proj"))
    edited = {port: any(part.edits for part in ref.pieces) for port, ref in node.weights.items()}
    assert edited == {"weight": True, "weight_a": False, "weight_b": False}
