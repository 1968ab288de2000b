"""Each mistake with quantised weights, planted in one layer and in all, as `moeparity doctor` names it from a log and
`moeparity weights` from the files.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from moeparity.inputs.weights.formats import FORMATS
from moeparity.inputs.weights.quantise import quantise
from moeparity.inputs.weights.rounded_to_fp8 import through_fp8
from tests.command import alone
from tests.doctor.programs import QUICKSTART, command, drifted, log, scored, tokens

Wrong = Callable[[str, Mapping[str, Tensor]], Tensor]
"""The name of a weight's scales, and all tensors -> what stands in their place."""
FILE = "model.safetensors"
ENDINGS = {"fp8-blocks": "weight_scale_inv", "int4-packed": "weight_scale"}
PLACES = {"in one layer": "layers.1.", "in all layers": "layers."}


def of_other_layer(name: str, tensors: Mapping[str, Tensor]) -> Tensor:
    layer = "1" if "layers.0." in name else "0"
    return tensors[name.replace(f"layers.{1 - int(layer)}.", f"layers.{layer}.")].clone()


def edited(edit: Callable[[Tensor], Tensor]) -> Wrong:
    return lambda name, tensors: edit(tensors[name]).reshape(tensors[name].shape).contiguous()


def taken_for_larger(scales: Tensor) -> Tensor:
    """What each block of 16 x 16 has if blocks are taken for 32 x 32."""
    down, across = (torch.arange(size) // 2 for size in scales.shape)
    return scales[down][:, across]


MISTAKES: dict[str, tuple[Wrong, str]] = {
    "scales-transposed": (edited(lambda s: s.T), "read as if their transpose lay there"),
    "scales-of-another-block": (edited(lambda s: s.flatten().roll(-1)), "each block has that of the next"),
    "scales-twice": (edited(torch.square), "each is squared, as if applied twice"),
    "scales-missing": (edited(torch.ones_like), "all are 1"),
    "scales-of-another-size(size=32)": (edited(taken_for_larger), "each is taken for that of a block of 32 x 32"),
    "scales-inverted": (edited(torch.reciprocal), "each is its reciprocal"),
    "scales-of-another-layer": (of_other_layer, ""),
}
"""By the fault that stands for a mistake with scales: what it makes of them, and what `moeparity weights` says."""


@pytest.fixture(scope="module")
def right(fewer: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The model as codes."""
    folder = tmp_path_factory.mktemp("right")
    for name in ENDINGS:
        quantise(fewer, FORMATS[name], folder / name, 16)
    return {name: folder / name for name in ENDINGS}


def planted(right: Path, folder: Path, where: str, wrong: Wrong) -> Path:
    shutil.copytree(right, folder)
    tensors = load_file(right / FILE)
    chosen = [name for name in tensors if where in name and name.endswith(ENDINGS[right.name])]
    assert chosen
    save_file({**tensors, **{name: wrong(name, tensors) for name in chosen}}, folder / FILE, {"format": "pt"})
    return folder


def examined(faulty: Path, right: Path, out: Path, *options: str | Path, ids: Tensor | None = None) -> dict[str, Any]:
    """What the doctor makes of a log of both."""
    ids = tokens(12, 16) if ids is None else ids
    path = log(out / "log.jsonl", ids, scored(faulty, ids, 4), scored(right, ids, 8))
    return command(path, right, "--sampler", "hf-default", *options, out=out / "out.json")


def weights_report(a: Path, b: Path, out: Path) -> dict[str, Any]:
    """What `moeparity weights` tells of two checkpoints."""
    done = alone("weights", a, b, "--json", out / "weights.json")
    assert done.returncode in {0, 1}, done.stderr
    report: dict[str, Any] = json.loads((out / "weights.json").read_text())
    return {**report, "exit": done.returncode, "says": {each["tensor"]: each["says"] for each in report["findings"]}}


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("fault", [name for name in MISTAKES if name != "scales-inverted"])
def test_wrong_scales_are_named_from_a_log(right: dict[str, Path], tmp_path: Path, fault: str, where: str) -> None:
    """Scales that two layers have of each other are two causes, one in each."""
    faulty = planted(right["fp8-blocks"], tmp_path / "faulty", PLACES[where], MISTAKES[fault][0])
    of = examined(faulty, right["fp8-blocks"], tmp_path)
    expected = {"in one layer": [f"{fault} of layer 1"], "in all layers": [fault]}[where]
    if fault == "scales-of-another-layer":
        each = ["scales of layer 0 in layer 1", "scales of layer 1 in layer 0"]
        expected = each if where == "in all layers" else each[:1]
    assert (sorted(of["blame"]["named"]), of["exit"]) == (expected, 1)


def test_scales_of_the_layer_before_in_every_layer_are_named(tmp_path: Path) -> None:
    """A number of layers that is off by one, in four layers: the first has its own."""
    quantise(QUICKSTART, FORMATS["fp8-blocks"], tmp_path / "fp8-blocks", 16)

    def before(name: str, tensors: Mapping[str, Tensor]) -> Tensor:
        layer = int(name.split(".")[2])
        return tensors[name.replace(f"layers.{layer}.", f"layers.{max(layer - 1, 0)}.")].clone()

    faulty = planted(tmp_path / "fp8-blocks", tmp_path / "faulty", "layers.", before)
    of = examined(faulty, tmp_path / "fp8-blocks", tmp_path)
    assert of["blame"]["named"] == ["scales of the layer before in every layer that has one there"]


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("form", ENDINGS)
def test_inverted_scales_are_named_or_nothing_is(right: dict[str, Path], tmp_path: Path, form: str, where: str) -> None:
    """Of fp8 they make values that no norm can square, so all logits are 0. Whatever else does that is not told from
    it: nothing is named, and what would tell is the files.
    """
    faulty = planted(right[form], tmp_path / "faulty", PLACES[where], MISTAKES["scales-inverted"][0])
    of = examined(faulty, right[form], tmp_path)
    name = "scales-inverted of layer 1" if where == "in one layer" else "scales-inverted"
    if form == "int4-packed":
        assert of["blame"]["named"] == [name]
        return
    assert (of["answer"], of["blame"]["named"], of["exit"]) == ("undecided", [], 3)
    assert "`moeparity weights`" in of["blame"]["would_decide"]
    (clue,) = (clue for clue in of["clues"] if "the same probability" in clue["says"])
    assert "the sampler gives every token the same probability, 1 of 256" in clue["says"]
    names = {of["explanations"][0]["name"], *(rival.rpartition(" (")[0] for rival in of["rivals"])}
    assert {name, "weights-zeroed of embed"} <= names


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("form", ENDINGS)
@pytest.mark.parametrize("fault", MISTAKES)
def test_wrong_scales_are_named_from_files(
    fewer: Path, right: dict[str, Path], tmp_path: Path, fault: str, form: str, where: str
) -> None:
    """Beside the numbers that the codes were made of, and beside the codes with the right scales."""
    wrong, words = MISTAKES[fault]
    if form == "int4-packed" and "size" in fault:
        wrong, words = edited(lambda s: s[:, torch.arange(s.shape[1]) // 2]), words.replace("32 x", "1 x")
    faulty = planted(right[form], tmp_path / "faulty", PLACES[where], wrong)
    beside_numbers, beside_codes = (weights_report(each, faulty, tmp_path) for each in (fewer, right[form]))
    layers = 1 if where == "in one layer" else 2
    weights = (4 + 8 * 3) * layers
    assert (beside_numbers["exit"], len(beside_numbers["says"])) == (1, weights)
    assert (beside_codes["exit"], len(beside_codes["says"])) == (1, weights)
    for name, sentence in beside_numbers["says"].items():
        kin = name.replace("layers.1.", "layers.2.").replace("layers.0.", "layers.1.").replace("layers.2.", "layers.0.")
        # Scales that stand in one layer have equal bits in both; those that changed places are where codes fit them.
        same = f"its scales have the bits of those of {kin}" if layers == 1 else f"its scales fit A's {kin}"
        assert sentence == (f"other scales than fit A's numbers: {words}" if words else same)
    for name, sentence in beside_codes["says"].items():
        if words:
            assert sentence.endswith(f": {words}, for the codes that A has")
        else:
            assert sentence.startswith("B holds A's model.layers.")
            assert sentence.removeprefix("B holds A's ").split(".")[3:] == name.split(".")[3:]


def without_codes(right: Path, source: Path, folder: Path, part: str) -> Path:
    """The checkpoint with some weights as they were, and on its list of these."""
    shutil.copytree(right, folder)
    tensors, numbers = load_file(right / FILE), load_file(source / FILE)
    config = json.loads((right / "config.json").read_text())
    chosen = [name for name in tensors if re.search(part, name) and name.endswith("weight_scale_inv")]
    assert chosen
    for name in chosen:
        weight = name.removesuffix("_scale_inv")
        del tensors[name]
        tensors[weight] = numbers[weight]
        config["quantization_config"].setdefault("modules_to_not_convert", []).append(weight.removesuffix(".weight"))
    save_file(tensors, folder / FILE, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("part", "absent", "where"),
    [
        (r"layers\.1", 28, "layer 1, what is to stay as it is"),
        (r"layers\.1|layers\.0\.(mlp|self_attn\.[kvo])", 55, "what is to stay as it is"),
        (r"mlp\.experts", 48, ""),
    ],
    ids=[*PLACES, "experts of all layers"],
)
def test_what_a_list_of_modules_to_leave_lacks_is_named(
    fewer: Path, tmp_path: Path, part: str, absent: int, where: str
) -> None:
    """The server quantises what the checkpoint has as it was: a layer, both but for one projection, or experts alone,
    which makes hardly more than noise: nothing is named, and what would tell is the files.
    """
    quantise(fewer, FORMATS["fp8-blocks"], tmp_path / "fp8-blocks", 128)
    listing = without_codes(tmp_path / "fp8-blocks", fewer, tmp_path / "listing", part)
    says = weights_report(listing, tmp_path / "fp8-blocks", tmp_path)["says"]
    assert len([name for name in says if re.search(part, name)]) == len(says) == absent
    assert {*says.values()} == {"numbers in A, codes in B: B's list of what to leave as it is may lack it"}
    of = examined(tmp_path / "fp8-blocks", listing, tmp_path, ids=tokens(32, 40))
    assert of["blame"]["named"] == ([f"weights-in-fp8(block=128) of {where}"] if where else [])
    if not where:
        assert of["answer"] == "undecided"
        assert "`moeparity weights`" in of["blame"]["would_decide"]


@pytest.mark.parametrize("block", [128, 0])
def test_routers_that_went_through_fp8_are_named_from_files(right: dict[str, Path], tmp_path: Path, block: int) -> None:
    faulty = tmp_path / "faulty"
    shutil.copytree(right["fp8-blocks"], faulty)
    tensors = load_file(faulty / FILE)
    for name in [name for name in tensors if name.endswith("mlp.gate.weight")]:
        tensors[name] = through_fp8(tensors[name], block).bfloat16()
    save_file(tensors, faulty / FILE, {"format": "pt"})
    blocks = "each 128 x 128 numbers" if block else "all numbers"
    says = f"A's numbers after fp8 with a scale for {blocks}: B's list of what to leave as it is may lack it"
    report = weights_report(right["fp8-blocks"], faulty, tmp_path)
    # A router of 8 x 48 numbers lies in one block.
    assert {*report["says"].values()} == {says.replace("all numbers", "each 128 x 128 numbers")}
    assert [*report["says"]] == [f"model.layers.{layer}.mlp.gate.weight" for layer in (0, 1)]


@pytest.mark.parametrize("where", PLACES)
def test_amaxes_that_an_update_left_behind_are_named(fewer: Path, tmp_path: Path, where: str) -> None:
    """The sampler rounds to fp8 what was exported, with scales that it made of the step before. Codes and such scales
    are the nearest to what was exported, so the files show no more than that the scales are not of its largest numbers.
    """
    before = drifted(fewer, tmp_path / "step-1", fraction=0.3)
    old, new = (load_file(folder / FILE) for folder in (before, fewer))
    codes: dict[str, Tensor] = {}
    multiplied = dict(new)
    for name in [name for name in new if PLACES[where] in name and "_proj" in name]:
        scale = old[name].float().abs().max() / 448
        codes[name] = (new[name].float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        multiplied[name] = (codes[name].float() * scale).bfloat16()
        codes[name.removesuffix("weight") + "weight_scale"] = scale.reshape(1)
    shutil.copytree(fewer, tmp_path / "faulty")
    save_file(multiplied, tmp_path / "faulty" / FILE, {"format": "pt"})
    of = examined(tmp_path / "faulty", fewer, tmp_path, "--previous", before, ids=tokens(32, 40))
    assert of["blame"]["named"] == ["stale amaxes of layer 1" if where == "in one layer" else "stale all amaxes"]
    shutil.copytree(fewer, tmp_path / "codes")
    save_file({**new, **codes}, tmp_path / "codes" / FILE, {"format": "pt"})
    fields = json.loads((fewer / "config.json").read_text())
    fields["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    (tmp_path / "codes" / "config.json").write_text(json.dumps(fields))
    report = weights_report(fewer, tmp_path / "codes", tmp_path)
    assert (report["exit"], report["rounded"]) == (0, sum("scale" in name for name in codes))
    (aside,) = report["aside"]
    assert "scales that are not of the largest numbers there. They are of earlier weights (a stale amax" in aside
    assert weights_report(fewer, fewer, tmp_path)["aside"] == []
