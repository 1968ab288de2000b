"""Defects of quantised checkpoints: one weight of the base in a format, and what config.json says of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from moeparity.inputs.weights.formats import FORMATS
from moeparity.inputs.weights.quantise import packed
from tests.errors.base import BASE, WEIGHTS, rewrite

PREFIX = "model.layers.1.self_attn.q_proj"
NAME = f"{PREFIX}.weight"


def say(folder: Path, **stated: Any) -> None:
    """Write this quantization_config."""
    fields = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**fields, "quantization_config": stated}), "utf-8")


def quantise(folder: Path, name: str, group: int, tensors: Mapping[str, Tensor | None] | None = None) -> None:
    """One weight in a format; tensors: others behind its name (None: left out)."""
    form = FORMATS[name]
    parts = packed(load_file(BASE / WEIGHTS)[NAME], form, group)
    others = {f"{PREFIX}{ending}": tensor for ending, tensor in (tensors or {}).items()}
    rewrite(folder, {NAME: None, **{PREFIX + form.names[role]: part for role, part in parts.items()}, **others})


def compressed(folder: Path, stored_as: str = "float-quantized", group: Any = None, **weights: Any) -> None:
    """A quantization_config of compressed-tensors with one group."""
    arguments = {"num_bits": 8, "type": "float", "strategy": "channel", **weights}
    groups = {"group_0": group or {"targets": ["Linear"], "weights": arguments}}
    say(folder, quant_method="compressed-tensors", format=stored_as, config_groups=groups)


def checkpoint_quantised_by_an_unknown_method(folder: Path) -> None:
    quantise(folder, "fp8", 0)
    say(folder, quant_method="bitsandbytes", load_in_4bit=True)


def checkpoint_quantised_with_an_unknown_key(folder: Path) -> None:
    quantise(folder, "fp8-blocks", 8)
    say(folder, quant_method="fp8", weight_blocksize=[8, 8])


def checkpoint_quantised_with_codes_of_another_kind(folder: Path) -> None:
    quantise(folder, "fp8-blocks", 8)
    say(folder, quant_method="fp8", fmt="e5m2", weight_block_size=[8, 8])


def checkpoint_quantised_in_blocks_of_no_size(folder: Path) -> None:
    quantise(folder, "fp8-blocks", 8)
    say(folder, quant_method="fp8", weight_block_size=[8, 0])


def checkpoint_quantised_in_groups_of_no_size(folder: Path) -> None:
    quantise(folder, "awq", 8)
    say(folder, quant_method="awq", bits=4, group_size=0, zero_point=True, version="gemm")


def checkpoint_quantised_in_groups_of_another_size(folder: Path) -> None:
    quantise(folder, "awq", 8)
    say(folder, quant_method="awq", bits=4, group_size=16, zero_point=True, version="gemm")


def checkpoint_quantised_without_groups(folder: Path) -> None:
    quantise(folder, "fp8", 0)
    say(folder, quant_method="compressed-tensors", format="float-quantized")


def checkpoint_quantised_as_something_else(folder: Path) -> None:
    quantise(folder, "fp8", 0)
    compressed(folder, stored_as="marlin-24")


def checkpoint_quantised_by_another_algorithm(folder: Path) -> None:
    quantise(folder, "fp8", 0)
    say(folder, quant_method="modelopt", quant_algo="NVFP4_AWQ")


def checkpoint_quantised_unlike_config_json(folder: Path) -> None:
    quantise(folder, "fp8", 0)
    compressed(folder, stored_as="pack-quantized", num_bits=4, type="int")


def checkpoint_quantised_though_left_out(folder: Path) -> None:
    quantise(folder, "fp8-blocks", 8)
    say(folder, quant_method="fp8", weight_block_size=[8, 8], modules_to_not_convert=["self_attn.q_proj"])


def checkpoint_quantised_with_a_list_that_is_none(folder: Path) -> None:
    quantise(folder, "fp8-blocks", 8)
    say(folder, quant_method="fp8", weight_block_size=[8, 8], modules_to_not_convert="lm_head")


def checkpoint_quantised_in_rows_only(folder: Path) -> None:
    quantise(folder, "fp8", 0, {".weight": torch.ones(16).to(torch.float8_e4m3fn)})
    compressed(folder)


def checkpoint_quantised_without_zero_points(folder: Path) -> None:
    quantise(folder, "awq", 8, {".qzeros": None})
    say(folder, quant_method="awq", bits=4, group_size=8, zero_point=True, version="gemm")


def checkpoint_quantised_with_an_index_too_short(folder: Path) -> None:
    quantise(folder, "gptq-int4", 8, {".g_idx": torch.zeros(8, dtype=torch.int32)})
    say(folder, quant_method="gptq", bits=4, group_size=8, desc_act=True, sym=False)


def checkpoint_quantised_of_another_shape(folder: Path) -> None:
    quantise(folder, "int4-packed", 8, {".weight_shape": torch.tensor([16, 24])})
    compressed(folder, stored_as="pack-quantized", num_bits=4, type="int", strategy="group", group_size=8)


def checkpoint_quantised_with_a_code_that_is_no_number(folder: Path) -> None:
    quantise(folder, "mxfp8", 0, {".weight_scale": torch.full((16, 1), 255, dtype=torch.uint8)})
    compressed(folder, stored_as="mxfp8-quantized", strategy="group", group_size=16, scale_dtype="torch.uint8")


def checkpoint_quantised_in_a_word(folder: Path) -> None:
    quantise(folder, "fp8", 0)
    fields = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**fields, "quantization_config": "fp8"}), "utf-8")


def checkpoint_quantised_by_a_file_of_nothing(folder: Path) -> None:
    quantise(folder, "fp8", 0)
    (folder / "hf_quant_config.json").write_text('{"producer": {"name": "modelopt"}}', "utf-8")


def checkpoint_quantised_in_an_unsaid_number_of_bits(folder: Path) -> None:
    quantise(folder, "gptq-int4", 8)
    say(folder, quant_method="gptq", group_size=8, desc_act=False, sym=False)


def checkpoint_quantised_in_groups_of_two_sizes(folder: Path) -> None:
    quantise(folder, "awq", 8)
    say(folder, quant_method="awq", bits=4, group_size=8, q_group_size=16, zero_point=True, version="gemm")


def checkpoint_quantised_for_no_target(folder: Path) -> None:
    quantise(folder, "fp8", 0)
    compressed(folder, group={"targets": [], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}})


def checkpoint_quantised_as_two_things(folder: Path) -> None:
    quantise(folder, "fp8", 0)
    weights = {"num_bits": 4, "type": "float", "group_size": 16}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    say(folder, quant_method="modelopt", quant_algo="FP8", config_groups=groups)


def checkpoint_quantised_with_scales_of_inputs_in_a_layer(folder: Path) -> None:
    quantise(folder, "fp8", 0)
    layers = {PREFIX: {"quant_algo": "FP8", "pre_quant_scale": True}}
    say(folder, quant_method="modelopt", quant_algo="MIXED_PRECISION", quantized_layers=layers)


def checkpoint_with_a_scale_of_each_cached_head(folder: Path) -> None:
    rewrite(folder, {"model.layers.1.self_attn.k_scale": torch.ones(2)})


def checkpoint_with_a_cache_divided_by_nothing(folder: Path) -> None:
    rewrite(folder, {"model.layers.1.self_attn.v_scale": torch.zeros(1)})


OF_CACHES = {"checkpoint-with-a-scale-of-each-cached-head", "checkpoint-with-a-cache-divided-by-nothing"}
"""Those that a cache of 8 bits meets."""
QUANTISED = {name.replace("_", "-"): f for name, f in list(globals().items()) if name.startswith("checkpoint_")}
