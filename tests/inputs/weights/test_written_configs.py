"""What programs write as quantization_config: read as they mean it, or refused; never read in part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from compressed_tensors.quantization import (  # type: ignore[import-untyped]
    QuantizationConfig,
    preset_name_to_scheme,
)
from transformers.utils.quantization_config import (
    AwqConfig,
    FbgemmFp8Config,
    FineGrainedFP8Config,
    GPTQConfig,
    Mxfp4Config,
)

from moeparity.errors import CheckpointError
from moeparity.inputs.weights.quantisation import Quantisation, read

Stated = dict[str, Any]


def stated(folder: Path, fields: Any) -> Quantisation:
    # transformers writes enumerations by their values.
    text = json.dumps({"quantization_config": fields}, default=lambda each: getattr(each, "value", str(each)))
    (folder / "config.json").write_text(text, "utf-8")
    return read(folder / "config.json")


def of_preset(preset: str, stored_as: str, **further: Any) -> Stated:
    """As compressed-tensors writes it, saved beside the weights."""
    written = QuantizationConfig(
        config_groups={"group_0": preset_name_to_scheme(preset, ["Linear"])}, format=stored_as, ignore=["lm_head"]
    )
    fields: Stated = json.loads(written.model_dump_json())
    return {**fields, "quantization_status": "compressed", **further}


READ: dict[str, tuple[Stated, str, tuple[int, int] | None]] = {
    "fp8 in blocks": (FineGrainedFP8Config().to_dict(), "fp8-blocks", (128, 128)),
    "fp8 in tensors": (FineGrainedFP8Config(weight_block_size=None).to_dict(), "fp8", None),  # type: ignore[arg-type]
    "mxfp4": (Mxfp4Config().to_dict(), "mxfp4", (1, 32)),
    "awq": (AwqConfig(group_size=64).to_dict(), "awq", (64, 1)),
    "gptq": (GPTQConfig(bits=8).to_dict(), "gptq-int8", (128, 1)),
    "FP8": (of_preset("FP8", "float-quantized"), "fp8", (0, 0)),
    "FP8_DYNAMIC": (of_preset("FP8_DYNAMIC", "float-quantized"), "fp8", (1, 0)),
    "FP8_BLOCK": (of_preset("FP8_BLOCK", "float-quantized"), "fp8", (128, 128)),
    "W4A16": (of_preset("W4A16", "pack-quantized"), "int4-packed", (1, 128)),
    "W8A8": (of_preset("W8A8", "int-quantized"), "int8", (1, 0)),
    "NVFP4": (of_preset("NVFP4", "nvfp4-pack-quantized"), "nvfp4-packed", (1, 16)),
    "MXFP4": (of_preset("MXFP4", "mxfp4-pack-quantized"), "mxfp4-packed", (1, 32)),
}
MODELOPT: Stated = {"quant_method": "modelopt", "quant_algo": "FP8", "producer": {"name": "modelopt"}}
REFUSED: dict[str, tuple[Any, str]] = {
    "experts in fp4": (FineGrainedFP8Config(expert_dtype="fp4").to_dict(), "expert_dtype 'fp4'"),
    "awq without zero points": (AwqConfig(zero_point=False).to_dict(), "zero_point false"),
    "gptq 2": ({**GPTQConfig(bits=4).to_dict(), "checkpoint_format": "gptq_v2"}, "checkpoint_format 'gptq_v2'"),
    "some modules otherwise": (
        {**GPTQConfig(bits=4).to_dict(), "dynamic": {"-:mlp": {}}},
        "dynamic .* where it is empty",
    ),
    "fbgemm": (FbgemmFp8Config().to_dict(), "quant_method 'fbgemm_fp8'"),
    "codes of another format": (of_preset("W4A16", "float-quantized"), "stores int4 as 'float-quantized'"),
    "3 bits": (of_preset("W3A16", "pack-quantized"), "num_bits 3"),
    "not yet quantised": (of_preset("FP8", "float-quantized", quantization_status="initialized"), "'initialized'"),
    "sparse": (of_preset("FP8", "float-quantized", sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config"),
    "rotated": (
        of_preset("FP8", "float-quantized", transform_config={"config_groups": {"R1": {}}}),
        "transform_config",
    ),
    "a preset's name": (of_preset("FP8", "float-quantized", config_groups={"FP8": ["Linear"]}), "each with its keys"),
    "awq of nvfp4": ({**MODELOPT, "quant_algo": "NVFP4_AWQ"}, "quant_algo 'NVFP4_AWQ'"),
    "blocks of fp8": ({**MODELOPT, "quant_algo": "FP8_PB_WO"}, "quant_algo 'FP8_PB_WO'"),
    "scaled inputs": ({**MODELOPT, "pre_quant_scale": True}, "pre_quant_scale true"),
    "layers unsaid": ({**MODELOPT, "quant_algo": "MIXED_PRECISION"}, "quantized_layers null"),
    "a list": (["fp8"], "quantization_config is a list"),
}


@pytest.mark.parametrize("name", READ)
def test_what_programs_write_is_read(name: str, tmp_path: Path) -> None:
    fields, form, block = READ[name]
    rule = stated(tmp_path, fields).rule("model.layers.0.self_attn.q_proj", form)
    assert rule is not None
    assert rule.block == block


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_understood_in_part_is_refused(name: str, tmp_path: Path) -> None:
    fields, complaint = REFUSED[name]
    with pytest.raises(CheckpointError, match=complaint):
        stated(tmp_path, fields)


@pytest.mark.parametrize("order", [1, -1])
def test_a_group_that_names_a_module_goes_before_one_for_all_linear_layers(order: int, tmp_path: Path) -> None:
    whole = of_preset("W4A16", "pack-quantized")["config_groups"]["group_0"]
    small = json.loads(json.dumps(whole))
    small["targets"], small["weights"]["group_size"] = ["re:.*down_proj$"], 32
    groups = dict([("all", whole), ("down", small)][::order])
    of = stated(tmp_path, of_preset("W4A16", "pack-quantized", config_groups=groups))
    down, gate = (of.rule(f"model.layers.0.mlp.experts.1.{each}_proj", "int4-packed") for each in ("down", "gate"))
    assert down is not None
    assert gate is not None
    assert (down.block, gate.block) == ((1, 32), (1, 128))


def test_only_modules_to_convert_are_quantised(tmp_path: Path) -> None:
    fields = FineGrainedFP8Config(modules_to_convert=["model.layers.0"]).to_dict()
    of = stated(tmp_path, fields)
    assert of.rule("model.layers.0.self_attn.q_proj", "fp8-blocks") is not None
    assert of.rule("model.layers.1.self_attn.q_proj", "fp8-blocks") is None
