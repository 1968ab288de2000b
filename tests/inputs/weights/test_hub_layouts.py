"""Quantised checkpoints in the hub's layouts: each weight is what another program makes of it, bit for bit, and a whole
model that of transformers where it loads the format on a CPU.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from moeparity.engine.forward import forward
from moeparity.errors import CheckpointError
from moeparity.inputs.model import open_model
from moeparity.inputs.weights.checkpoint import Checkpoint
from moeparity.inputs.weights.formats import FORMATS
from moeparity.inputs.weights.quantise import default_group, quantise
from tests.checkpoint_factory import FILE, make_random
from tests.hf import reference
from tests.hf.compare import assert_is, tokens
from tests.inputs.weights import foreign
from tests.small_models import SMALL

FIELDS = {
    **SMALL["qwen3_moe"], "hidden_size": 128, "moe_intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "num_experts": 4,
}  # fmt: skip
_PACKING = "compressed_tensors.compressors.pack_quantized.helpers"
MODULES = ("model.layers.0.self_attn.k_proj", "model.layers.1.mlp.experts.3.down_proj")
COMPRESSED = [name for name, form in FORMATS.items() if "compressed-tensors" in form.methods]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random(FIELDS, tmp_path_factory.mktemp("bf16") / "model")


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fields = {**SMALL["gpt_oss"], "intermediate_size": 64, "num_hidden_layers": 2}
    return make_random(fields, tmp_path_factory.mktemp("bf16") / "gpt_oss")


def written(source: Path, folder: Path, name: str, group: int | None = None) -> Path:
    form = FORMATS[name]
    quantise(source, form, folder, default_group(form) if group is None else group)
    return folder


def change(folder: Path, tensors: dict[str, Tensor | None], **stated: Any) -> Path:
    """Other tensors (None: none) and other fields of quantization_config."""
    changed = {**load_file(folder / FILE), **tensors}
    save_file({n: t.contiguous() for n, t in changed.items() if t is not None}, folder / FILE, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config["quantization_config"].update(stated)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


@pytest.mark.parametrize("name", COMPRESSED)
def test_a_weight_is_that_of_compressed_tensors(source: Path, tmp_path: Path, name: str) -> None:
    folder = written(source, tmp_path / "q", name)
    checkpoint = Checkpoint(folder)
    for module in MODULES:
        assert foreign.same(checkpoint.tensor(f"{module}.weight"), foreign.by_compressed_tensors(folder, module))


@pytest.mark.parametrize("group", [0, 32, 128])
@pytest.mark.parametrize("name", ["int4-packed", "int8-packed"])
def test_zero_points_are_those_of_compressed_tensors(source: Path, tmp_path: Path, name: str, group: int) -> None:
    """Each zero point there can be, packed by compressed-tensors itself; 20 outputs do not fill the words."""
    pytest.importorskip("compressed_tensors")
    pack_to_int32: Any = importlib.import_module(_PACKING).pack_to_int32
    folder, bits, (module, _) = written(source, tmp_path / "q", name, group), int(name[3]), MODULES
    scales = load_file(folder / FILE)[f"{module}.weight_scale"]
    zeros = (torch.arange(scales.numel()) % 2**bits - 2 ** (bits - 1)).view(scales.shape).to(torch.int8)
    packed = {}
    for key in load_file(folder / FILE):
        if key.endswith(".weight_scale"):
            each = zeros if key.startswith(module) else torch.zeros_like(load_file(folder / FILE)[key]).to(torch.int8)
            packed[key.replace("_scale", "_zero_point")] = pack_to_int32(each, bits, packed_dim=0)
    groups = json.loads((folder / "config.json").read_text("utf-8"))["quantization_config"]["config_groups"]
    groups["group_0"]["weights"]["symmetric"] = False
    change(folder, packed, config_groups=groups)
    assert foreign.same(Checkpoint(folder).tensor(f"{module}.weight"), foreign.by_compressed_tensors(folder, module))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_weight_is_that_of_autoawq(source: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    folder = written(source, tmp_path / "q", "awq", 32)
    change(folder, {n: t.to(dtype) for n, t in load_file(folder / FILE).items() if n.endswith(".scales")})
    checkpoint = Checkpoint(folder)
    for module in MODULES:
        assert foreign.same(checkpoint.tensor(f"{module}.weight"), foreign.by_autoawq(folder, module, 32))


@pytest.mark.parametrize("name", ["gptq-int4", "gptq-int8"])
@pytest.mark.parametrize("group", [32, 0])
def test_a_weight_is_that_of_gptqmodel(source: Path, tmp_path: Path, name: str, group: int) -> None:
    """With inputs in another order than their groups, as act-order leaves them."""
    folder, module = written(source, tmp_path / "q", name, group), MODULES[1]
    order = torch.randperm(128, generator=torch.Generator().manual_seed(0))
    index = load_file(folder / FILE)[f"{module}.g_idx"][order]
    change(folder, {f"{module}.g_idx": index}, desc_act=True)
    stored = foreign.parts(folder, f"{module}.")
    theirs = foreign.by_gptqmodel(stored, int(name[-1]), group or -1, tmp_path)
    assert foreign.same(Checkpoint(folder).tensor(f"{module}.weight"), theirs)


def test_nvfp4_of_modelopt_number_by_number(source: Path, tmp_path: Path) -> None:
    """No other program reads it here: each number by itself, product of the scales rounded first."""
    folder, module = written(source, tmp_path / "q", "nvfp4"), MODULES[0]
    stored = foreign.parts(folder, f"{module}.")
    ours = Checkpoint(folder).tensor(f"{module}.weight")
    codes = torch.stack((stored["weight"] & 15, stored["weight"] >> 4), -1).flatten(-2)
    sizes = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    for row, column in [(r, c) for r in range(0, 64, 7) for c in range(128)]:
        code = int(codes[row, column])
        scale = (stored["weight_scale"][row, column // 16].double() * stored["weight_scale_2"].double()).float()
        number = scale.double() * sizes[code & 7] * (-1 if code > 7 else 1)
        assert float(ours[row, column]) == float(number.float())


LOADED = ("fp8-blocks", "fp8", "mxfp4-packed", "int4-packed", "int8-packed")


def transformers_model(folder: Path, profile: str, dtype: torch.dtype) -> Any:
    """The checkpoint as transformers loads it, every weight multiplied out."""
    pytest.importorskip("compressed_tensors")
    pytest.importorskip("accelerate")
    from transformers.utils.quantization_config import CompressedTensorsConfig, FineGrainedFP8Config, Mxfp4Config

    method = json.loads((folder / "config.json").read_text("utf-8"))["quantization_config"]["quant_method"]
    configs: dict[str, Any] = {
        "compressed-tensors": CompressedTensorsConfig, "fp8": FineGrainedFP8Config, "mxfp4": Mxfp4Config
    }  # fmt: skip
    arguments = {**reference.ARGUMENTS[profile], "quantization_config": configs[method](dequantize=True)}
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **arguments).eval()


@pytest.mark.filterwarnings("ignore:You passed `quantization_config`")
@pytest.mark.parametrize("name", LOADED)
def test_a_model_is_that_of_transformers(
    source: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "load", transformers_model)
    folder = written(source, tmp_path / "q", name, 64 if name == "fp8-blocks" else None)
    model, ids = open_model(folder, device="cpu"), tokens(64, (2, 9))
    assert_is(model, forward(model, ids, dtype="bf16"), reference.reference(folder, "hf-eager", torch.bfloat16, ids))


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_gpt_oss_is_that_of_transformers(
    gpt_oss: Path, tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "load", transformers_model)
    folder = written(gpt_oss, tmp_path / "q", "mxfp4")
    model, ids = open_model(folder, device="cpu"), tokens(512, (2, 9))
    truth = reference.reference(folder, "hf-eager", {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype], ids)
    assert_is(model, forward(model, ids, dtype=dtype), truth)


@pytest.mark.filterwarnings("ignore:You passed `quantization_config`")
def test_transformers_leaves_the_global_scale_of_nvfp4_experts_out(source: Path, tmp_path: Path) -> None:
    """Its linear layers are ours; its experts are ours times what compressed-tensors divides by."""
    folder, (dense, expert) = written(source, tmp_path / "q", "nvfp4-packed"), MODULES
    layers = transformers_model(folder, "hf-eager", torch.bfloat16).model.layers
    checkpoint, scale = Checkpoint(folder), load_file(folder / FILE)[f"{expert}.weight_global_scale"]
    assert foreign.same(checkpoint.tensor(f"{dense}.weight"), layers[0].self_attn.k_proj.weight.data)
    theirs = layers[1].mlp.experts.down_proj.data[3].float()
    ratio = theirs.norm() / checkpoint.tensor(f"{expert}.weight").float().norm()
    assert abs(float(ratio / scale) - 1) < 0.01


def test_all_codes_and_scales_of_mxfp4_are_those_of_transformers(gpt_oss: Path, tmp_path: Path) -> None:
    """All pairs of codes under each exponent that leaves them finite in bf16."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    folder = written(gpt_oss, tmp_path / "q", "mxfp4")
    name = "model.layers.0.mlp.experts.down_proj"
    blocks, scales = (load_file(folder / FILE)[f"{name}_{part}"] for part in ("blocks", "scales"))
    blocks = (torch.arange(blocks.numel()) % 256).to(torch.uint8).view(blocks.shape)
    scales = (torch.arange(scales.numel()) % 252).to(torch.uint8).view(scales.shape)
    change(folder, {f"{name}_blocks": blocks, f"{name}_scales": scales})
    assert foreign.same(Checkpoint(folder).tensor(name), convert_moe_packed_tensors(blocks, scales))


def test_config_json_names_modules_as_the_file_does(source: Path, tmp_path: Path) -> None:
    """Beside a vision tower the text model's names have a prefix, in the file and in the lists of config.json."""
    plain, tower = written(source, tmp_path / "plain", "int8"), written(source, tmp_path / "tower", "int8")
    prefix, tower_prefix = "model.", "model.language_model."
    tensors = load_file(tower / FILE)
    renamed: dict[str, Tensor | None] = dict.fromkeys(tensors)
    change(tower, renamed | {name.replace(prefix, tower_prefix, 1): tensor for name, tensor in tensors.items()})
    with_tower, alone = Checkpoint(tower, None), Checkpoint(plain, None)
    assert with_tower.entries.keys() == alone.entries.keys()
    assert all(with_tower.tensor(name).equal(alone.tensor(name)) for name in alone.entries)
    change(tower, {}, ignore=[f"{tower_prefix}layers.0.self_attn.k_proj"])
    with pytest.raises(CheckpointError, match=r"lists model\.language_model\.layers\.0\.self_attn\.k_proj among"):
        Checkpoint(tower, None)


def test_words_that_would_not_be_full_are_left_as_they_are(tmp_path: Path) -> None:
    """Rows of 37 fill no word of four or eight codes; what is written can be read."""
    odd = make_random(SMALL["qwen3_moe_odd"], tmp_path / "odd")
    for name in ("int4-packed", "int8-packed", "awq", "gptq-int4"):
        model = open_model(written(odd, tmp_path / name, name), device="cpu")
        assert model.formats == (name,)
        entry = Checkpoint(model.folder, None).entries["model.layers.0.mlp.experts.0.down_proj.weight"]
        assert entry.packed is None


def test_layers_may_lie_in_several_formats(source: Path, tmp_path: Path) -> None:
    """Experts in int4, attention in fp8, one layer plain: each by its own group of config.json; scales of caches."""
    int4, fp8 = written(source, tmp_path / "int4", "int4-packed"), written(source, tmp_path / "fp8", "fp8")
    stated = json.loads((fp8 / "config.json").read_text("utf-8"))["quantization_config"]
    group_0 = {
        **json.loads((int4 / "config.json").read_text("utf-8"))["quantization_config"]["config_groups"]["group_0"]
    }
    group_1 = {**stated["config_groups"]["group_0"], "format": "float-quantized", "targets": ["re:.*self_attn.*"]}
    group_0 |= {"format": "pack-quantized", "targets": ["re:.*mlp.experts.*"]}
    attention = {n: t for n, t in load_file(fp8 / FILE).items() if ".0.self_attn" in n}
    plain = {n: t for n, t in load_file(source / FILE).items() if ".1.self_attn" in n and "norm" not in n}
    packed = {n: None for n in load_file(int4 / FILE) if "self_attn" in n and "norm" not in n}
    scales = {f"model.layers.0.self_attn.{each}_scale": torch.ones(1) for each in "kv"}
    groups = {"group_0": group_0, "group_1": group_1}
    folder = change(
        int4, {**packed, **attention, **plain, **scales}, config_groups=groups, format="mixed-precision",
        ignore=["re:model.layers.1.self_attn.*", "lm_head", "re:.*gate$"], kv_cache_scheme={"num_bits": 8},
    )  # fmt: skip
    checkpoint = open_model(folder, device="cpu").weights.checkpoint
    assert isinstance(checkpoint, Checkpoint)
    assert checkpoint.beside == tuple(sorted(scales))
    forms = {name: entry.packed.form.name for name, entry in checkpoint.entries.items() if entry.packed}
    assert {form for name, form in forms.items() if "experts" in name} == {"int4-packed"}
    assert {form for name, form in forms.items() if ".0.self_attn" in name} == {"fp8"}
    assert not any(".1.self_attn" in name for name in forms)
    for module, group in ((MODULES[0], "group_1"), (MODULES[1], "group_0")):
        assert foreign.same(checkpoint.tensor(f"{module}.weight"), foreign.by_compressed_tensors(folder, module, group))
