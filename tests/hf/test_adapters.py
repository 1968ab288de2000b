"""LoRA adapters beside, in and folded into the weights: logits equal peft's own forward, bit for bit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM

from moeparity.engine.forward import forward
from moeparity.inputs.model import Model, open_model
from moeparity.numerics.bits import same_bits
from tests.adapters import ATTENTION, EXPERTS, make_adapter, quiet
from tests.checkpoint_factory import make_small
from tests.hf.compare import DTYPES, PROFILES, tokens
from tests.hf.reference import ARGUMENTS
from tests.verified import record_plan

Settings = Mapping[str, str]
LINEAR = "layers[*].**_proj"
OF_EXPERTS = "layers[*].moe.experts"
MERGED: Settings = {f"{LINEAR}:adapter": "merged"}
MERGED_EXPERTS: Settings = {
    f"{OF_EXPERTS}:adapter": "merged",
    f"{OF_EXPERTS}:adapter_inputs": "fp32",
    f"{OF_EXPERTS}:adapter_product": "fp32",
}
WAYS: Mapping[str, Settings] = {
    "as loaded": {},
    "in the model's dtype": {f"{LINEAR}:adapter_{s}": "model" for s in ("inputs", "inner", "product", "scaled")},
    "merged": MERGED,
    "merged safely": {**MERGED, f"{LINEAR}:adapter_scaled": "model"},
}
"""What peft does -> what a side sets on top of `hf-*`."""
PATTERNS: dict[str, Any] = {
    "r": 4, "lora_alpha": 7, "use_rslora": True, "rank_pattern": {"q_proj": 3, "layers.1.*.v_proj": 1},
    "alpha_pattern": {"o_proj": 5},
}  # fmt: skip
ADAPTERS: Mapping[str, dict[str, Any]] = {
    "qwen3_moe": {"r": 2, "lora_alpha": 3, "target_modules": ATTENTION, "target_parameters": EXPERTS},
    "llama": {"target_modules": [*ATTENTION, "gate_proj", "up_proj", "down_proj"], **PATTERNS},
}
"""Small checkpoint -> its adapter; the shapes of llama's are no multiples of 64 bytes."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    checkpoints = {name: make_small(name, tmp_path_factory.mktemp(name)) for name in ADAPTERS}
    return {
        name: (folder, make_adapter(folder, folder / "adapter", **ADAPTERS[name]))
        for name, folder in checkpoints.items()
    }


@lru_cache(maxsize=2)
def opened_with(checkpoint: Path, adapter: Path) -> Model:
    return open_model(checkpoint, device="cpu", adapter=adapter)


def of_peft(checkpoint: Path, adapter: Path, profile: str, dtype: str, way: str, shapes: list[Tensor]) -> list[Tensor]:
    base = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=DTYPES[dtype], **ARGUMENTS[profile])
    with quiet():
        model = PeftModel.from_pretrained(base, adapter, autocast_adapter_dtype=way != "in the model's dtype").eval()
    if way.startswith("merged"):
        model = model.merge_and_unload(safe_merge=way == "merged safely")
    with torch.no_grad():
        return [model(input_ids=ids, use_cache=False).logits for ids in shapes]


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ADAPTERS)
def test_logits_are_those_of_peft(
    folders: dict[str, tuple[Path, Path]], name: str, way: str, profile: str, dtype: str
) -> None:
    checkpoint, adapter = folders[name]
    model = opened_with(checkpoint, adapter)
    shapes = [tokens(model.vocab_size, shape) for shape in ((1, 1), (2, 9), (3, 17))]
    settings = {**WAYS[way], **(MERGED_EXPERTS if way.startswith("merged") and name == "qwen3_moe" else {})}
    for ids, truth in zip(shapes, of_peft(checkpoint, adapter, profile, dtype, way, shapes), strict=True):
        ours = forward(model, ids, profile=profile, dtype=dtype, settings=settings)["logits"]
        assert same_bits(ours, truth)
    record_plan(model, f"peft {peft.__version__}", profile=profile, dtype=dtype, settings=settings)


def test_each_way_has_bits_of_its_own(folders: dict[str, tuple[Path, Path]]) -> None:
    """Of the ways above none has another's bits, nor the checkpoint's own, on one and the same tokens."""
    checkpoint, adapter = folders["qwen3_moe"]
    ids = tokens(512, (3, 17))
    logits = [forward(opened_with(checkpoint, adapter), ids, settings=of)["logits"] for of in WAYS.values()]
    logits.append(forward(open_model(checkpoint, device="cpu"), ids)["logits"])
    logits.append(forward(opened_with(checkpoint, adapter), ids, settings=MERGED_EXPERTS)["logits"])
    for place, of_way in enumerate(logits):
        assert not any(same_bits(of_way, other_way) for other_way in logits[:place])


def test_an_expert_adapter_alone_changes_no_attention_of_the_first_layer(
    folders: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    checkpoint, _ = folders["qwen3_moe"]
    adapter = make_adapter(checkpoint, tmp_path / "down", r=2, lora_alpha=4, target_parameters=[EXPERTS[1]])
    adapted = opened_with(checkpoint, adapter)
    assert {node.name for node in adapted.graph.nodes if node.params.get("adapter")} == {
        f"layers[{layer}].moe.experts" for layer in range(3)
    }
    ids, nodes = tokens(512, (2, 9)), ["layers[0].attention.*", "layers[0].moe.experts"]
    with_it, without = (forward(model, ids, save=nodes) for model in (adapted, open_model(checkpoint, device="cpu")))
    changed = {re.sub(r"\d", "*", name) for name in with_it if not same_bits(with_it[name], without[name])}
    assert "layers.0.moe.experts".replace("0", "*") in changed
    assert not any("attention" in name for name in changed)
    (truth,) = of_peft(checkpoint, adapter, "hf-eager", "bf16", "as loaded", [ids])
    assert same_bits(with_it["logits"], truth)
