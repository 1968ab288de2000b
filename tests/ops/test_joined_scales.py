"""Weights that an engine joins under one scale of the tensor: q, k and v, gate and up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from moeparity.errors import SpecError
from moeparity.inputs.model import Model, open_model
from moeparity.inputs.weights.formats import FORMATS
from moeparity.inputs.weights.quantise import quantise
from moeparity.numerics.bits import same_bits
from tests.checkpoint_factory import FILE, make_random
from tests.ops.test_own_codes import EXPERTS, FIELDS, run

Tensor = torch.Tensor
FP8 = torch.float8_e4m3fn
JOINED: dict[str, Any] = {"weights": "fp8_e4m3", "weight_scales": "joined", "weight_scale_by": "divided"}
FACTORS = {"q_proj": 1.0, "k_proj": 2.5, "v_proj": 0.3}
"""By how much weights of attention are larger than drawn."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_random(FIELDS, tmp_path_factory.mktemp("bf16") / "model")
    tensors = load_file(folder / FILE)
    for name, tensor in tensors.items():
        factor = next((factor for part, factor in FACTORS.items() if part in name), 1.0)
        tensors[name] = tensor * factor if "gate_proj" not in name else tensor * 1.7
    save_file(tensors, folder / FILE, {"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def codes(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In fp8, each weight with one scale."""
    folder = tmp_path_factory.mktemp("codes") / "model"
    quantise(plain, FORMATS["fp8-blocks"], folder, 0)
    tensors = load_file(folder / FILE)
    scale = ".weight_scale_inv"
    renamed = {
        name.replace(scale, ".weight_scale"): x.reshape(()) if name.endswith(scale) else x
        for name, x in tensors.items()
    }
    save_file(renamed, folder / FILE, {"format": "pt"})
    fields = json.loads((folder / "config.json").read_text("utf-8"))
    stated = {"quant_algo": "FP8", "quant_method": "modelopt", "ignore": ["lm_head", "*.gate"]}
    (folder / "config.json").write_text(json.dumps({**fields, "quantization_config": stated}), "utf-8")
    return folder


def multiplied_out(numbers: Tensor, scale: Tensor) -> Tensor:
    """Numbers on the grid of a scale, as CUDA has it: times its reciprocal."""
    on_grid = (numbers.float() * (1 / scale)).clamp(-448, 448).to(FP8)
    return (on_grid.float() * scale).bfloat16()


@pytest.mark.parametrize("name", FACTORS)
def test_numbers_have_the_scale_of_the_largest_of_three(plain: Path, name: str) -> None:
    tensors = load_file(plain / FILE)
    three = {part: tensors[f"model.layers.0.self_attn.{part}.weight"] for part in FACTORS}
    scale = max(weight.float().abs().max() for weight in three.values()) / 448
    x, ours = run(open_model(plain, device="cpu"), f"layers[0].attention.{name}", JOINED)
    assert same_bits(ours, torch.nn.functional.linear(x, multiplied_out(three[name], scale)))
    alone = run(open_model(plain, device="cpu"), f"layers[0].attention.{name}", {**JOINED, "weight_scales": "tensor"})
    assert same_bits(ours, alone[1]) == (name == "k_proj")


@pytest.mark.parametrize("name", FACTORS)
def test_codes_are_rounded_once_more_to_the_largest_scale(codes: Path, name: str) -> None:
    """vLLM multiplies them out in fp16 before (per_tensor_dequantize); written by hand."""
    tensors = load_file(codes / FILE)
    place = f"model.layers.0.self_attn.{name}"
    scales = [tensors[f"model.layers.0.self_attn.{part}.weight_scale"] for part in FACTORS]
    in_fp16 = tensors[f"{place}.weight"].half() * tensors[f"{place}.weight_scale"]
    assert in_fp16.dtype == torch.float16
    x, ours = run(open_model(codes, device="cpu"), f"layers[0].attention.{name}", {**JOINED, "master": "fp16"})
    assert same_bits(ours, torch.nn.functional.linear(x, multiplied_out(in_fp16, max(scales))))


def test_gate_and_up_of_an_expert_lie_in_one_tensor(codes: Path) -> None:
    """As what each expert's two matrices are with the larger of their scales."""
    tensors = load_file(codes / FILE)
    renamed = dict(tensors)
    for expert in range(4):
        places = [f"model.layers.0.mlp.experts.{expert}.{part}_proj" for part in ("gate", "up")]
        largest = max(tensors[f"{place}.weight_scale"] for place in places)
        for place in places:
            in_fp16 = tensors[f"{place}.weight"].half() * tensors[f"{place}.weight_scale"]
            renamed[f"{place}.weight"] = (in_fp16.float() * (1 / largest)).clamp(-448, 448).to(FP8)
            renamed[f"{place}.weight_scale"] = largest.clone()
    by_hand = codes.parent / "by hand"
    by_hand.mkdir(exist_ok=True)
    save_file(renamed, by_hand / FILE, {"format": "pt"})
    (by_hand / "config.json").write_text((codes / "config.json").read_text("utf-8"), "utf-8")
    sets = {**JOINED, "master": "fp16", "implementation": "loop", "gate_up": "fused"}
    ours, theirs = (
        run(open_model(folder, device="cpu"), EXPERTS, {**sets, "weight_scales": scales})[1]
        for folder, scales in ((codes, "joined"), (by_hand, "tensor"))
    )
    assert same_bits(ours, theirs)
    apart = run(open_model(codes, device="cpu"), EXPERTS, {**sets, "weight_scales": "tensor"})[1]
    assert not same_bits(ours, apart)


def test_a_weight_that_none_is_joined_with_has_its_own(plain: Path, codes: Path) -> None:
    for folder in (plain, codes):
        model = open_model(folder, device="cpu")
        ours, alone = (
            run(model, "layers[0].attention.o_proj", {**JOINED, "weight_scales": scales})[1]
            for scales in ("joined", "tensor")
        )
        assert same_bits(ours, alone)


@pytest.mark.parametrize(
    ("node", "sets", "says"),
    [
        ("layers[0].attention.q_proj", {"weight_magnitude": "shrunk"}, "is made of their largest number. Set largest"),
        (EXPERTS, {"implementation": "loop", "gate_up": "split"}, "gate and up of an expert are two tensors here"),
    ],
)
def test_what_does_not_fit_is_refused(plain: Path, node: str, sets: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        run(open_model(plain, device="cpu"), node, {**JOINED, **sets})


def test_ranks_and_weights_without_codes_are_refused(plain: Path, codes: Path) -> None:
    node = "layers[0].attention.q_proj"
    with pytest.raises(SpecError, match="parts of joined weights have a largest number of their own"):
        run(open_model(plain, device="cpu"), node, {**JOINED, "tensor": 2})
    tensors = load_file(codes / FILE)
    name = "model.layers.0.self_attn.v_proj.weight"
    tensors[name] = tensors[name].float().bfloat16()
    del tensors[f"{name}_scale"]
    mixed = codes.parent / "mixed"
    mixed.mkdir(exist_ok=True)
    save_file(tensors, mixed / FILE, {"format": "pt"})
    fields = json.loads((codes / "config.json").read_text("utf-8"))
    fields["quantization_config"]["ignore"].append("*.v_proj")
    (mixed / "config.json").write_text(json.dumps(fields), "utf-8")
    model: Model = open_model(mixed, device="cpu")
    with pytest.raises(SpecError, match="a weight that is joined with this one is no codes"):
        run(model, node, JOINED)
