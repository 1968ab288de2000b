"""Weights that stand in another place."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from moeparity.doctor.hypotheses import Hypothesis, scales_of_one_layer
from moeparity.doctor.misplaced import misplaced, orders
from moeparity.inputs.model import open_model
from moeparity.inputs.weights.formats import FORMATS
from moeparity.inputs.weights.quantise import quantise
from moeparity.inputs.weights.rounded_to_fp8 import through_fp8
from moeparity.plan.graph import Graph
from tests.doctor.programs import QUICKSTART, command, log, scored, tokens


@pytest.fixture(scope="module")
def graph() -> Graph:
    return open_model(QUICKSTART, device="cpu").graph


@pytest.fixture(scope="module")
def every(graph: Graph) -> dict[str, Hypothesis]:
    return {each.name: each for each in misplaced(graph)}


def test_each_layer_and_node_may_have_a_neighbours_weights(every: dict[str, Hypothesis]) -> None:
    """The first layer has one neighbour; nodes outside layers have none."""
    layers = [name for name in every if " in layer " in name]
    assert layers == [
        f"weights of layer {source} in layer {layer}"
        for layer, source in ((0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2))
    ]
    of_one = every["weights of layer 2 in layers[1].attention.q_proj"].plants
    assert [(plant.node, plant.values) for plant in of_one] == [("layers[1].attention.q_proj", (("layer", 2),))]
    assert "weights of layer 0 in layers[0].moe.gate" not in every
    of_all = every["weights of the layer behind in every layer that has one there"].plants
    assert {(plant.node, *plant.values) for plant in of_all if "q_proj" in plant.node} == {
        (f"layers[{layer}].attention.q_proj", ("layer", layer + 1)) for layer in range(3)
    }


def test_each_mistake_with_scales_is_tried_in_each_layer(fewer: Path, tmp_path: Path, graph: Graph) -> None:
    quantise(fewer, FORMATS["fp8-blocks"], tmp_path / "fp8", 16)
    of_layers = {each.name: each for each in scales_of_one_layer(open_model(tmp_path / "fp8", device="cpu").graph)}
    faults = ("inverted", "missing", "of-another-block", "transposed", "twice")
    assert sorted(of_layers) == [f"scales-{fault} of layer {layer}" for fault in faults for layer in (0, 1)]
    nodes = [plant.node for plant in of_layers["scales-twice of layer 1"].plants]
    assert nodes == [*(f"layers[1].attention.{x}_proj" for x in "qkvo"), "layers[1].moe.experts"]
    assert list(scales_of_one_layer(graph)) == []


def test_experts_in_another_order_are_tried_in_all_layers(every: dict[str, Hypothesis]) -> None:
    turned = every["experts one place before"]
    assert [plant.node for plant in turned.plants] == [f"layers[{layer}].moe.experts" for layer in range(4)]
    assert turned.plants[0].values == (("order", " ".join(map(str, [*range(1, 24), 0]))),)


@pytest.mark.parametrize("experts", [2, 3, 4, 6, 16])
def test_orders_are_orders_and_none_comes_twice(experts: int) -> None:
    every = [order for _, order in orders(experts)]
    assert all(sorted(order) == list(range(experts)) for order in every)
    assert len({*every}) == len(every)
    assert tuple(range(experts)) not in every


def test_what_is_dealt_in_turn_and_read_in_blocks() -> None:
    """Rank 0 of two has experts 0, 2, 4; read in blocks they stand in the places of 0, 1, 2."""
    assert dict(orders(6))["dealt in turn to 2 ranks, read as blocks"] == (0, 2, 4, 1, 3, 5)
    assert dict(orders(6))["in blocks of 2 ranks, read as dealt in turn"] == (0, 3, 1, 4, 2, 5)


def test_a_layer_with_another_ones_projection_is_named(small: Path, tmp_path: Path) -> None:
    ids = tokens(16, 24)

    def exchange(model: object) -> None:
        first, second = model.model.layers  # type: ignore[attr-defined]
        second.self_attn.o_proj.weight = first.self_attn.o_proj.weight

    path = log(tmp_path / "log.jsonl", ids, scored(small, ids, 4, patch=exchange), scored(small, ids, 8))
    of = command(path, small, "--sampler", "hf-eager", out=tmp_path / "out.json")
    assert of["blame"]["named"] == ["weights of layer 0 in layers[1].attention.o_proj"]


def test_experts_dealt_to_ranks_the_other_way_are_named(small: Path, tmp_path: Path) -> None:
    ids = tokens(16, 24)
    order = dict(orders(24))["dealt in turn to 4 ranks, read as blocks"]

    def deal(model: object) -> None:
        for layer in model.model.layers:  # type: ignore[attr-defined]
            for name in ("gate_up_proj", "down_proj"):
                weights = getattr(layer.mlp.experts, name)
                weights.data = weights.data[list(order)]

    path = log(tmp_path / "log.jsonl", ids, scored(small, ids, 4), scored(small, ids, 8, patch=deal))
    of = command(path, small, "--sampler", "hf-eager", out=tmp_path / "out.json")
    assert of["blame"]["named"] == ["experts dealt in turn to 4 ranks, read as blocks"]


def quantised_pair(small: Path, folder: Path, change: Callable[[str, Tensor], Tensor]) -> tuple[Path, Path]:
    """The model in fp8, and the same with other scales."""
    quantise(small, FORMATS["fp8-blocks"], folder / "fp8", 16)
    shutil.copytree(folder / "fp8", folder / "changed")
    tensors = load_file(folder / "changed" / "model.safetensors")
    for name in [name for name in tensors if name.endswith("weight_scale_inv")]:
        tensors[name] = change(name, tensors[name])
    save_file(tensors, folder / "changed" / "model.safetensors", {"format": "pt"})
    return folder / "fp8", folder / "changed"


def test_scales_that_a_loader_applies_twice_are_named(
    fewer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mistake is made in transformers' own loading of fp8, in all layers; the checkpoint is right."""
    quantise(fewer, FORMATS["fp8-blocks"], tmp_path / "fp8", 16)
    ids, unchanged = tokens(12, 16), Fp8Dequantize._dequantize_one

    def mistaken(self: Fp8Dequantize, codes: Tensor, scales: Tensor, output_dtype: torch.dtype | None = None) -> Tensor:
        return unchanged(self, codes, scales * scales, output_dtype)

    right = scored(tmp_path / "fp8", ids, 8)
    monkeypatch.setattr(Fp8Dequantize, "_dequantize_one", mistaken)
    path = log(tmp_path / "log.jsonl", ids, scored(tmp_path / "fp8", ids, 4), right)
    of = command(path, tmp_path / "fp8", "--sampler", "hf-default", out=tmp_path / "out.json")
    assert of["blame"]["named"] == ["scales-twice"]


def test_scales_that_an_update_left_behind_are_named(small: Path, tmp_path: Path) -> None:
    """The codes are those of the checkpoint, the scales of layer 1 those of the step before."""
    random = torch.Generator().manual_seed(5)
    present, previous = quantised_pair(
        small, tmp_path, lambda _, scales: scales * (1 + 0.15 * torch.randn(scales.shape, generator=random))
    )
    before = load_file(previous / "model.safetensors")
    shutil.copytree(present, tmp_path / "faulty")
    tensors = load_file(present / "model.safetensors")
    tensors |= {name: before[name] for name in tensors if "layers.1." in name and name.endswith("weight_scale_inv")}
    save_file(tensors, tmp_path / "faulty" / "model.safetensors", {"format": "pt"})
    ids = tokens(16, 24)
    path = log(tmp_path / "log.jsonl", ids, scored(tmp_path / "faulty", ids, 4), scored(present, ids, 8))
    options = ("--sampler", "hf-default", "--previous", previous)
    of = command(path, present, *options, out=tmp_path / "out.json")
    assert of["blame"]["named"] == ["stale scales of layer 1"]


def test_a_head_that_was_to_stay_as_it_is_is_named(fewer: Path, tmp_path: Path) -> None:
    """It is missing from the sampler's list of what not to quantise. The same of routers makes no more than noise."""
    shutil.copytree(fewer, tmp_path / "faulty")
    tensors = load_file(fewer / "model.safetensors")
    tensors["lm_head.weight"] = through_fp8(tensors["lm_head.weight"], 128).to(torch.bfloat16)
    save_file(tensors, tmp_path / "faulty" / "model.safetensors", {"format": "pt"})
    right, faulty = (
        quantised_pair(each, tmp_path / str(n), lambda _, scales: scales)[0]
        for n, each in enumerate((fewer, tmp_path / "faulty"))
    )
    ids = tokens(32, 40)
    path = log(tmp_path / "log.jsonl", ids, scored(faulty, ids, 4), scored(right, ids, 8))
    of = command(path, right, "--sampler", "hf-default", out=tmp_path / "out.json")
    assert of["blame"]["named"] == ["skip-list-ignored(block=128) of lm_head"]


def test_scales_that_are_off_by_a_factor_in_one_layer_are_named_with_it(small: Path, tmp_path: Path) -> None:
    right, faulty = quantised_pair(
        small, tmp_path, lambda name, scales: scales * 1.27 if "layers.1." in name else scales
    )
    ids = tokens(16, 24)
    path = log(tmp_path / "log.jsonl", ids, scored(faulty, ids, 4), scored(right, ids, 8))
    of = command(path, right, "--sampler", "hf-default", out=tmp_path / "out.json")
    (cause,) = of["blame"]["named"]
    assert re.fullmatch(r"scales-scaled\(factor=1\.2[67]\d*\) of layer 1", cause)


def test_inverted_scales_of_one_projection_are_named(fewer: Path, tmp_path: Path) -> None:
    """Of a whole layer they make values that no norm can square (test_quantised.py)."""
    where = "layers.1.self_attn.o_proj"
    right, faulty = quantised_pair(fewer, tmp_path, lambda name, scales: 1 / scales if where in name else scales)
    ids = tokens(12, 16)
    path = log(tmp_path / "log.jsonl", ids, scored(faulty, ids, 4), scored(right, ids, 8))
    of = command(path, right, "--sampler", "hf-default", out=tmp_path / "out.json")
    assert of["blame"]["named"] == ["scales-inverted of layers[1].attention.o_proj"]


@pytest.mark.parametrize(
    "wrong",
    [lambda scales: scales.flip(0), lambda scales: scales.roll(1, 0), lambda scales: scales.bfloat16().float()],
    ids=["rows backwards", "rows turned by one", "rounded to bf16"],
)
def test_scales_that_are_wrong_in_a_way_no_file_lists_get_no_name(
    fewer: Path, tmp_path: Path, wrong: Callable[[Tensor], Tensor]
) -> None:
    """All scales of layer 1; those that are turned by whole rows are nearly those of another block."""
    right, faulty = quantised_pair(
        fewer, tmp_path, lambda name, scales: wrong(scales).contiguous() if "layers.1." in name else scales
    )
    ids = tokens(12, 16)
    path = log(tmp_path / "log.jsonl", ids, scored(faulty, ids, 4), scored(right, ids, 8))
    of = command(path, right, "--sampler", "hf-default", out=tmp_path / "out.json")
    assert of["blame"]["named"] == []
    assert of["answer"] in {"not explained", "undecided", "noise", "as configured"}
