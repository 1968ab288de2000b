"""Scales of cached keys and values that a checkpoint has, as the cache uses them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from moeparity.engine.forward import forward
from moeparity.errors import CheckpointError
from moeparity.inputs.model import open_model
from moeparity.inputs.weights.cache_scales import cache_scales
from moeparity.inputs.weights.checkpoint import Checkpoint
from moeparity.inputs.weights.formats import FORMATS
from moeparity.inputs.weights.quantise import quantise
from moeparity.numerics.bits import same_bits
from moeparity.plan.config import Config
from moeparity.plan.expand import expand
from tests.checkpoint_factory import FILE, make_small

ATTENTION = "model.layers.1.self_attn."


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_small("qwen3_moe", tmp_path_factory.mktemp("model") / "bf16")


def with_scales(source: Path, folder: Path, scales: dict[str, Tensor]) -> Path:
    """A copy of a checkpoint with these beside the weights of layer 1."""
    shutil.copytree(source, folder)
    tensors = load_file(folder / FILE) | {ATTENTION + name: scale for name, scale in scales.items()}
    save_file(tensors, folder / FILE, {"format": "pt"})
    return folder


def scales_of(folder: Path, layer: int = 1) -> dict[str, float]:
    graph = expand(Config(folder / "config.json"))
    node = next(node for node in graph.nodes if node.name == f"layers[{layer}].attention.cache")
    return {name: float(scale) for name, scale in cache_scales(node, graph, Checkpoint(folder)).items()}


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ({}, (1.0, 1.0)),
        ({"k_scale": 0.5, "v_scale": 0.25}, (0.5, 0.25)),
        ({"attn.k_scale": 0.5, "attn.v_scale": 0.25}, (0.5, 0.25)),
        ({"k_proj.k_scale": 0.5, "v_proj.v_scale": 0.25}, (0.5, 0.25)),
        ({"k_proj.output_scale": 0.5, "v_proj.output_scale": 0.25}, (0.5, 0.25)),
        ({"kv_scale": 0.5}, (0.5, 0.5)),
        ({"k_scale": 0.5}, (0.5, 0.5)),
        ({"v_scale": 0.25}, (0.25, 0.25)),
    ],
)
def test_scales_are_found_where_exporters_put_them(
    stored: dict[str, float], expected: tuple[float, float], source: Path, tmp_path: Path
) -> None:
    folder = with_scales(source, tmp_path / "m", {name: torch.tensor(scale) for name, scale in stored.items()})
    assert scales_of(folder) == dict(zip(("k_scale", "v_scale"), expected, strict=True))
    assert scales_of(folder, 0) == {"k_scale": 1.0, "v_scale": 1.0}


@pytest.mark.parametrize(
    ("scale", "complaint"),
    [
        (torch.ones(2), r"model\.layers\.1\.self_attn\.k_scale is F32 \[2\]; expected \[\], one scale for all heads"),
        (torch.tensor(0.0), r"self_attn\.k_scale is F32 \[\] and 0; expected a number above 0"),
        (torch.tensor(-1.0), r"self_attn\.k_scale is F32 \[\] and -1; expected a number above 0"),
        (torch.tensor(float("nan")), r"self_attn\.k_scale is F32 \[\] and nan; expected a number above 0"),
    ],
    ids=["two", "zero", "negative", "NaN"],
)
def test_scales_that_divide_nothing_are_refused(scale: Tensor, complaint: str, source: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        scales_of(with_scales(source, tmp_path / "m", {"k_scale": scale}))


@pytest.mark.parametrize("form", ["plain", "fp8-blocks"])
def test_a_cache_with_the_files_scales_is_one_with_these_numbers(form: str, source: Path, tmp_path: Path) -> None:
    """Layer by layer those of the file, in a checkpoint of 16 bits and in a quantised one; other numbers have other
    bits.
    """
    folder = with_scales(source, tmp_path / "plain", {"k_scale": torch.tensor(0.75), "v_scale": torch.tensor(0.0125)})
    if form != "plain":
        quantise(source, FORMATS[form], tmp_path / "codes", 16)
        folder = with_scales(
            tmp_path / "codes", tmp_path / "both", {"k_scale": torch.tensor(0.75), "v_scale": torch.tensor(0.0125)}
        )
    model, ids = open_model(folder, device="cpu"), torch.arange(24).view(2, 12) % 60
    stored: dict[str, str | float] = {"layers[*].attention.cache:stored": "fp8_e4m3"}
    of_file = forward(model, ids, settings={**stored, "layers[*].attention.cache:scale": "checkpoint"})["logits"]
    numbers = {"layers[1].attention.cache:k_scale": 0.75, "layers[1].attention.cache:v_scale": 0.0125}
    assert same_bits(of_file, forward(model, ids, settings={**stored, **numbers})["logits"])
    assert not same_bits(of_file, forward(model, ids, settings=stored)["logits"])


def test_a_scale_by_head_ends_a_run_before_it_begins(source: Path, tmp_path: Path) -> None:
    folder = with_scales(source, tmp_path / "m", {"v_scale": torch.ones(2)})
    settings: dict[str, str | float] = {
        "layers[*].attention.cache:stored": "fp8_e4m3",
        "layers[*].attention.cache:scale": "checkpoint",
    }
    with pytest.raises(CheckpointError, match=r"self_attn\.v_scale is F32 \[2\]"):
        forward(open_model(folder, device="cpu"), torch.arange(8).view(1, 8), settings=settings)
