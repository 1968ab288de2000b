"""Checkpoints of fp8 in blocks: what is read is what transformers makes of them, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

from moeparity.engine.forward import forward
from moeparity.errors import CheckpointError
from moeparity.inputs.model import open_model
from moeparity.inputs.weights import packed as packed_weights
from moeparity.inputs.weights.checkpoint import Checkpoint
from moeparity.inputs.weights.formats import FORMATS
from moeparity.inputs.weights.packed import unpacked
from moeparity.inputs.weights.quantise import packed as pack
from moeparity.inputs.weights.quantise import quantise
from moeparity.inputs.weights.rounded_to_fp8 import through_fp8
from moeparity.inputs.weights.source import Packed
from moeparity.numerics.bits import same_bits
from moeparity.plan.edits import Part
from tests.checkpoint_factory import FILE, make_random
from tests.command import inside
from tests.hf.compare import DTYPES, assert_is, tokens
from tests.hf.reference import reference
from tests.small_models import SMALL

FIELDS = {
    **SMALL["qwen3_moe"], "hidden_size": 128, "moe_intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
}  # fmt: skip
BLOCK = 64
SCALES = "_scale_inv"
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"
Weights = dict[str, Tensor]


def quantised(weights: Weights, scale_format: str | None = None) -> Weights:
    """All projections as transformers writes them in fp8, everything else as it was."""
    config = SimpleNamespace(weight_block_size=(BLOCK, BLOCK), scale_fmt=scale_format)
    quantise = Fp8Quantize(SimpleNamespace(quantization_config=config))
    packed: Weights = {}
    for name, weight in weights.items():
        packed |= quantise._quantize_one(name, weight) if "proj" in name else {name: weight}
    return packed


def dequantised(packed: Weights, dtype: torch.dtype) -> Weights:
    """What transformers makes of them for a model of that dtype."""
    dequantise = Fp8Dequantize(None)
    return {
        name: dequantise._dequantize_one(weight, packed[name + SCALES], dtype) if name + SCALES in packed else weight
        for name, weight in packed.items()
        if not name.endswith(SCALES)
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random(FIELDS, tmp_path_factory.mktemp("bf16") / "model")


def written(folder: Path, source: Path, weights: Weights, **config: object) -> Path:
    folder.mkdir()
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / FILE, {"format": "pt"})
    fields = json.loads((source / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**fields, **config}), "utf-8")
    return folder


def in_fp8(folder: Path, source: Path, change: Callable[[Weights], None] | None = None, **of_scales: str) -> Path:
    packed = quantised(load_file(source / FILE), of_scales.get("scale_format"))
    if change is not None:
        change(packed)
    stated = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK], "activation_scheme": "dynamic"}
    return written(folder, source, packed, quantization_config=stated)


@pytest.mark.parametrize("scale_format", [None, "ue8m0"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_model_is_that_of_transformers(source: Path, tmp_path: Path, dtype: str, scale_format: str | None) -> None:
    packed = quantised(load_file(source / FILE), scale_format)
    folder = in_fp8(tmp_path / "fp8", source, scale_format=scale_format or "")
    plain = written(tmp_path / "plain", source, dequantised(packed, DTYPES[dtype]))
    model, ids = open_model(folder, device="cpu"), tokens(64, (2, 9))
    assert any(entry.packed for entry in model.weights.checkpoint.entries.values())
    assert_is(model, forward(model, ids, dtype=dtype), reference(plain, "hf-eager", DTYPES[dtype], ids))


def test_scales_are_told_from_weights(source: Path, tmp_path: Path) -> None:
    """A tensor stands for its numbers in fp32; its scales are none, and its bytes are counted as they lie there."""
    folder = in_fp8(tmp_path / "fp8", source)
    checkpoint = Checkpoint(folder)
    entry = checkpoint.entries[Q_PROJ]
    assert entry.packed is not None
    assert (entry.dtype, entry.packed.form.name, entry.packed.block) == ("F8_E4M3", "fp8-blocks", (BLOCK, BLOCK))
    assert entry.bytes == 128 * 128 + 4 * 4
    assert not any(name.endswith(SCALES) for name in checkpoint.entries)
    assert checkpoint.tensor(Q_PROJ).dtype == torch.float32


def in_blocks(packed: Tensor, scales: Tensor, block: tuple[int, int]) -> Tensor:
    described = Packed(form=FORMATS["fp8-blocks"], tensors={}, block=block, bytes=0)
    return unpacked({"values": packed, "scales": scales}, described)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.uint8])
def test_a_matrix_that_ends_within_a_block(stored: torch.dtype) -> None:
    """Number by number, for blocks of 4 x 8 and a matrix of 10 x 11."""
    draw = torch.Generator().manual_seed(0)
    packed = torch.randn(10, 11, generator=draw).to(torch.float8_e4m3fn)
    scales = torch.rand(3, 2, generator=draw)
    scales = torch.tensor([[120, 127], [130, 126], [127, 125]]).byte() if stored == torch.uint8 else scales.to(stored)
    numbers = in_blocks(packed, scales, (4, 8))
    for row in range(10):
        for column in range(11):
            scale = float(scales[row // 4, column // 8])
            factor = 2.0 ** (scale - 127) if stored == torch.uint8 else scale
            exact = torch.tensor(float(packed[row, column]) * factor, dtype=torch.float64).float()
            assert numbers[row, column] == exact


def test_blocks_are_those_that_config_json_states(source: Path, tmp_path: Path) -> None:
    """Blocks of 48 rows and columns, the last of which are shorter."""
    quantise(source, FORMATS["fp8-blocks"], tmp_path / "fp8", 48)
    file = load_file(tmp_path / "fp8" / FILE)
    assert file[Q_PROJ + SCALES].shape == (3, 3)
    expected = in_blocks(file[Q_PROJ], file[Q_PROJ + SCALES], (48, 48))
    assert torch.equal(Checkpoint(tmp_path / "fp8").tensor(Q_PROJ), expected)


def unknown_blocks(weights: Weights) -> None:
    weights[Q_PROJ + SCALES] = torch.ones(3, 2)


def scale_of_the_whole(weights: Weights) -> None:
    weights[Q_PROJ + SCALES] = torch.ones(1)


def more_scales_than_rows(weights: Weights) -> None:
    weights[Q_PROJ + SCALES] = torch.ones(256, 1)


def a_scale_that_is_no_number(weights: Weights) -> None:
    weights[Q_PROJ + SCALES][0, 0] = torch.nan


def no_scales(weights: Weights) -> None:
    del weights[Q_PROJ + SCALES]


BAD: dict[Callable[[Weights], None], str] = {
    unknown_blocks: r"is F32 \[3, 2\]; expected \[2, 2\]",
    scale_of_the_whole: r"is F32 \[1\]; expected \[2, 2\], one for each 64 x 64 numbers of .*q_proj.weight",
    more_scales_than_rows: r"is F32 \[256, 1\]; expected \[2, 2\]",
    a_scale_that_is_no_number: r"\d+ of 16384 values are NaN or infinite",
    no_scales: r"is F8_E4M3 \[128, 128\], which is no weight by itself",
}


@pytest.mark.parametrize("damage", BAD, ids=lambda damage: damage.__name__)
def test_what_is_none_is_refused(source: Path, tmp_path: Path, damage: Callable[[Weights], None]) -> None:
    with pytest.raises(CheckpointError, match=BAD[damage]):
        open_model(in_fp8(tmp_path / "fp8", source, damage), device="cpu")


def test_init_says_what_is_not_computed(source: Path, tmp_path: Path) -> None:
    done = inside("init", in_fp8(tmp_path / "fp8", source), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "weights (fp8-blocks) are multiplied by their scales when they are read" in " ".join(done.stdout.split())


@pytest.mark.parametrize("block", [BLOCK, 0])
def test_a_weight_through_fp8_is_transformers_there_and_back(source: Path, block: int) -> None:
    """All numbers of all projections, with a block of zeros and one of subnormals."""
    weights = load_file(source / FILE)
    weights[Q_PROJ][:BLOCK, :BLOCK] = 0
    weights[Q_PROJ][BLOCK:, :BLOCK] *= 1e-30
    config = SimpleNamespace(weight_block_size=(block, block) if block else None, scale_fmt=None)
    quantise = Fp8Quantize(SimpleNamespace(quantization_config=config))
    for name, weight in weights.items():
        if "proj" in name:
            packed = quantise._quantize_one(name, weight)
            expected = Fp8Dequantize(None)._dequantize_one(packed[name], packed[name + SCALES], torch.float32)
            assert same_bits(through_fp8(weight, block), expected)


def test_blocks_that_are_cut_short_have_a_scale_of_their_own() -> None:
    """Block by block, each by itself."""
    weight = torch.randn(10, 11, generator=torch.Generator().manual_seed(2))
    ours = through_fp8(weight, 8)
    for rows in (slice(0, 8), slice(8, 10)):
        for columns in (slice(0, 8), slice(8, 11)):
            assert same_bits(ours[rows, columns].contiguous(), through_fp8(weight[rows, columns], 0))
    assert torch.equal(through_fp8(weight[0], 8), weight[0])


def test_scales_of_smaller_numbers_cut_what_is_larger() -> None:
    """A stale largest number of 1: what lies beyond becomes 1, what lies inside is on the grid of 1 / 448."""
    weight = torch.tensor([[0.5, 3.0], [-2.0, 0.3]])
    before = torch.tensor([[1.0, 0.0], [-0.25, 0.5]])
    assert through_fp8(weight, 0, before).tolist() == [[0.5, 1.0], [-1.0, torch.tensor(128 / 448).item()]]


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "mxfp4"])
def test_a_matrix_made_some_rows_at_a_time_has_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last rows are fewer than the others; blocks are of 16 rows where they have rows."""
    form, weight = FORMATS[name], torch.randn(56, 256, generator=torch.Generator().manual_seed(3)).bfloat16()
    tensors = pack(weight, form, form.group or 16)
    block = (16, 16) if name == "fp8-blocks" else (form.group or 16, 1) if form.input_major else (1, form.group or 16)
    layout = Packed(form=form, tensors={role: role for role in tensors}, block=block, bytes=0)
    whole = unpacked(tensors, layout)
    monkeypatch.setattr(packed_weights, "_AT_ONCE", 1500)
    assert same_bits(unpacked(tensors, layout), whole)


def test_scales_of_a_weight_that_has_none_change_nothing(tmp_path: Path) -> None:
    """A file that leaves a layer as it is has no scales there for another layer to take."""
    make_random(FIELDS, tmp_path / "bf16")
    weights = load_file(tmp_path / "bf16" / FILE)
    packed = quantised({name: weight for name, weight in weights.items() if name != Q_PROJ})
    (tmp_path / "fp8").mkdir()
    save_file({**packed, Q_PROJ: weights[Q_PROJ]}, tmp_path / "fp8" / FILE)
    config = json.loads((tmp_path / "bf16" / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
    (tmp_path / "fp8" / "config.json").write_text(json.dumps(config))
    checkpoint, borrower = Checkpoint(tmp_path / "fp8"), Q_PROJ.replace("layers.0", "layers.1")
    lent = Part(name=borrower, scales=(("of", Q_PROJ),))
    assert same_bits(checkpoint.rescaled(lent, checkpoint), checkpoint.tensor(borrower))
    own_scales = checkpoint.scales(Part(name=borrower), checkpoint)
    scales = checkpoint.scales(lent, checkpoint)
    assert scales is not None
    assert own_scales is not None
    assert same_bits(scales, own_scales)
    from_kin = Part(name=borrower, scales=(("of", borrower.replace("q_proj", "o_proj")),))
    assert not same_bits(checkpoint.rescaled(from_kin, checkpoint), checkpoint.tensor(borrower))
