"""Defects of LoRA adapters: a function each, named for what it does to an adapter beside a copy of the base."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from moeparity.inputs.weights.formats import FORMATS
from moeparity.inputs.weights.quantise import quantise

PREFIX = "base_model.model.model.layers.0."
FIELDS: dict[str, Any] = {
    "peft_type": "LORA",
    "r": 2,
    "lora_alpha": 4,
    "target_modules": ["q_proj"],
    "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
    "layers_to_transform": [0],
}
SHAPES = {
    "self_attn.q_proj": ((2, 16), (16, 2)),
    "mlp.experts.base_layer": ((8, 16), (16, 8)),
    "mlp.experts": ((8, 8), (16, 8)),
}
CONFIG, MATRICES = "adapter_config.json", "adapter_model.safetensors"


def matrices() -> dict[str, torch.Tensor]:
    return {
        f"{PREFIX}{module}.lora_{half}.weight": torch.ones(shape)
        for module, shapes in SHAPES.items()
        for half, shape in zip("AB", shapes, strict=True)
    }


def write(folder: Path, tensors: dict[str, torch.Tensor] | None = None, **fields: Any) -> Path:
    """The adapter, and a line in the base's recipe that names it."""
    adapter = folder / "adapter"
    adapter.mkdir()
    save_file(matrices() if tensors is None else tensors, adapter / MATRICES)
    (adapter / CONFIG).write_text(json.dumps({**FIELDS, **fields}), "utf-8")
    recipe = folder / "recipe.yaml"
    recipe.write_text(f"{recipe.read_text('utf-8')}adapter: adapter\n", "utf-8")
    return adapter


def adapter_without_config(folder: Path) -> None:
    (write(folder) / CONFIG).unlink()


def adapter_config_a_folder(folder: Path) -> None:
    path = write(folder) / CONFIG
    path.unlink()
    path.mkdir()


def adapter_config_no_mapping(folder: Path) -> None:
    (write(folder) / CONFIG).write_text("[]", "utf-8")


def adapter_without_matrices(folder: Path) -> None:
    (write(folder) / MATRICES).unlink()


def adapter_half_missing(folder: Path) -> None:
    tensors = matrices()
    del tensors[f"{PREFIX}self_attn.q_proj.lora_B.weight"]
    write(folder, tensors)


def adapter_named_otherwise(folder: Path) -> None:
    write(folder, {name.replace("lora_", "lora_embedding_"): x for name, x in matrices().items()})


def adapter_of_an_unknown_module(folder: Path) -> None:
    write(folder, {name.replace("q_proj", "qkv_proj"): x for name, x in matrices().items()})


def adapter_of_another_width(folder: Path) -> None:
    write(folder, {**matrices(), f"{PREFIX}self_attn.q_proj.lora_B.weight": torch.ones(24, 2)})


def adapter_of_one_place_twice(folder: Path) -> None:
    doubled = {name.replace("q_proj", "q_proj.base_layer"): x for name, x in matrices().items() if "q_proj" in name}
    write(folder, {**matrices(), **doubled})


def adapter_module_missing(folder: Path) -> None:
    write(folder, target_modules=["q_proj"], layers_to_transform=None)


def adapter_of_a_pattern_missing(folder: Path) -> None:
    write(folder, target_modules=r".*\.self_attn\.(q|v)_proj", layers_to_transform=None)


def adapter_of_another_alpha_for_one_parameter(folder: Path) -> None:
    write(folder, alpha_pattern={"experts.down_proj": 8})


def adapter_beside_quantised_weights(folder: Path) -> None:
    write(folder)
    quantise(folder, FORMATS["fp8-blocks"], folder.parent / "quantised", 8)
    for path in (folder.parent / "quantised").iterdir():
        path.replace(folder / path.name)


def _with(folder: Path, **fields: Any) -> None:
    write(folder, **fields)


ADAPTERS: dict[str, Callable[[Path], object]] = {
    **{
        name.replace("_", "-"): write_defect
        for name, write_defect in globals().copy().items()
        if name.startswith("adapter_") and callable(write_defect)
    },
    "adapter-rank-of-another-config": partial(_with, r=3),
    "adapter-rank-no-number": partial(_with, r="4"),
    "adapter-of-another-kind": partial(_with, peft_type="IA3"),
    "adapter-with-dora": partial(_with, use_dora=True),
    "adapter-with-trained-biases": partial(_with, bias="all"),
    "adapter-with-saved-modules": partial(_with, modules_to_save=["lm_head"]),
    "adapter-target-no-expression": partial(_with, target_modules="q_proj("),
    "adapter-pattern-no-expression": partial(_with, rank_pattern={"q_proj(": 4}),
    "adapter-alpha-not-finite": partial(_with, lora_alpha=float("inf")),
}
