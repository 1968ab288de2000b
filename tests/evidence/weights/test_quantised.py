"""A checkpoint of codes beside the numbers that they were made of, and beside another one of the same format."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from moeparity.evidence.weights.compare import compare
from moeparity.evidence.weights.fingerprint_files import open_weights
from moeparity.evidence.weights.report import WeightsReport
from moeparity.inputs.weights.checkpoint import Checkpoint
from moeparity.inputs.weights.formats import FORMATS
from moeparity.inputs.weights.quantise import quantise
from tests.checkpoint_factory import make_random
from tests.command import inside
from tests.small_models import SMALL

Tensors = dict[str, Tensor]
Change = Callable[[Tensors], None]
GROUPED = {"fp8-blocks": 16, "fp8": 0, "mxfp8": 32, "mxfp4-packed": 32, "nvfp4-packed": 16, "nvfp4": 16,
           "int4-packed": 16, "int8-packed": 16, "int8": 0, "awq": 16, "gptq-int4": 16, "gptq-int8": 16}  # fmt: skip
"""Formats of matrices, with the group of a small copy."""
EXPERT = "model.layers.1.mlp.experts.2.down_proj"
SCALES = {"fp8-blocks": ".weight_scale_inv", "int4-packed": ".weight_scale", "awq": ".scales"}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint in bf16, with widths that are multiples of 32."""
    folder = tmp_path_factory.mktemp("plain") / "bf16"
    fields = {**SMALL["qwen3_moe"], "hidden_size": 64, "moe_intermediate_size": 96, "num_hidden_layers": 2,
              "num_experts": 4, "num_experts_per_tok": 2}  # fmt: skip
    make_random(fields, folder)
    return folder


@pytest.fixture(scope="module")
def quantised(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("quantised")
    for name, group in GROUPED.items():
        quantise(plain, FORMATS[name], folder / name, group)
    return {name: folder / name for name in GROUPED}


def changed(checkpoint: Path, folder: Path, change: Change) -> Path:
    shutil.copytree(checkpoint, folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def compared(a: Path, b: Path, cast: str | None = None) -> WeightsReport:
    return compare(open_weights(a, cast), open_weights(b, cast))


def says(report: WeightsReport) -> dict[str, str]:
    return {finding.tensor: finding.says for finding in report.findings}


@pytest.mark.parametrize("name", GROUPED)
def test_codes_nearest_to_the_numbers_are_the_same_weights(plain: Path, quantised: dict[str, Path], name: str) -> None:
    for report in (compared(plain, quantised[name]), compared(quantised[name], plain)):
        assert (report.findings, report.aside, report.exit_code) == ((), (), 0)
        # Three matrices of each of four experts, and four of attention, in two layers.
        assert report.rounded == 2 * (4 * 3 + 4)
        assert report.equal == report.compared > 0


@pytest.mark.parametrize("name", GROUPED)
def test_the_same_weights_multiplied_out(quantised: dict[str, Path], name: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert compared(quantised[name], quantised[name]).findings == ()
    multiplied = open_weights(quantised[name], "bf16")
    assert {part.dtype for part in multiplied.by_rank[0].parts} == {"bfloat16"}
    source = Checkpoint(quantised[name])
    tensors = {entry: source.tensor(entry).bfloat16().contiguous() for entry in source.entries}
    out.mkdir()
    save_file(tensors, out / "model.safetensors")
    config = json.loads((quantised[name] / "config.json").read_text())
    config.pop("quantization_config")
    (out / "config.json").write_text(json.dumps(config))
    assert compared(quantised[name], out, "bf16").equal == len(source.entries)
    assert compared(quantised[name], out).exit_code == 0


def of_layer_0(tensors: Tensors) -> None:
    for name in tensors:
        if name.startswith(EXPERT) and "scale" in name:
            tensors[name] = tensors[name.replace("layers.1", "layers.0")].clone()


def edited(edit: Callable[[Tensor], Tensor]) -> Change:
    def change(tensors: Tensors) -> None:
        for name in tensors:
            if name.startswith(EXPERT) and name.endswith(tuple(SCALES.values())):
                tensors[name] = edit(tensors[name])

    return change


FAULTS: dict[str, tuple[Change, str, str]] = {
    "another layer": (of_layer_0, "its scales have the bits of those of {kin}", "B holds A's {kin_scales}"),
    "transposed": (edited(lambda s: s.mT.contiguous().view(s.shape)), "transpose lay there", "transpose lay there"),
    "next block": (edited(lambda s: s.flatten().roll(-1).view(s.shape)), "that of the next", "that of the next"),
    "squared": (edited(lambda s: s * s), "as if applied twice", "as if applied twice"),
    "inverted": (edited(lambda s: 1 / s), "its reciprocal", "its reciprocal"),
    "ones": (edited(torch.ones_like), "all are 1", "one number only in B"),
    "stale": (edited(lambda s: s * 1.5), "its scales are about 1.", "A's scales times 1.5"),
    "of some blocks": (edited(lambda s: torch.where(torch.arange(s.numel()).view(s.shape) % 3 == 0, s * 2, s)),
                       "do not fit A's numbers in 3", "other bits"),
    "not a number": (edited(lambda s: s * torch.nan), "NaN or infinity", "other bits"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", SCALES)
def test_what_scales_are_instead(
    plain: Path, quantised: dict[str, Path], tmp_path: Path, name: str, fault: str
) -> None:
    change, beside_numbers, beside_codes = FAULTS[fault]
    bad = changed(quantised[name], tmp_path / "bad", change)
    kin = EXPERT.replace("layers.1", "layers.0")
    words = {"kin": f"{kin}.weight", "kin_scales": kin + SCALES[name]}
    (sentence,) = says(compared(plain, bad)).items()
    assert sentence[0] == f"{EXPERT}.weight"
    assert beside_numbers.format(**words) in sentence[1]
    (sentence,) = says(compared(quantised[name], bad)).items()
    assert sentence[0] == EXPERT + SCALES[name]
    assert beside_codes.format(**words) in sentence[1]
    if not beside_codes.startswith(("B holds", "one number")):
        assert sentence[1].endswith(", for the codes that A has")


@pytest.mark.parametrize(("name", "second"), [("nvfp4-packed", ".weight_global_scale"), ("nvfp4", ".weight_scale_2")])
def test_a_scale_of_the_whole_tensor_that_is_inverted(
    plain: Path, quantised: dict[str, Path], tmp_path: Path, name: str, second: str
) -> None:
    """Multiplied by where it is a divisor, as modular/modular#6600 tells."""

    def invert(tensors: Tensors) -> None:
        tensors[EXPERT + second] = 1 / tensors[EXPERT + second]

    bad = changed(quantised[name], tmp_path / "bad", invert)
    says_of_numbers = "other scales than fit A's numbers: that of the whole tensor is its reciprocal"
    assert says(compared(plain, bad)) == {f"{EXPERT}.weight": says_of_numbers}
    says_of_codes = "A's scales: each is its reciprocal, for the codes that A has"
    assert says(compared(quantised[name], bad)) == {EXPERT + second: says_of_codes}


@pytest.mark.parametrize("fault", ["squared", "inverted", "ones", "transposed", "next block"])
@pytest.mark.parametrize(("name", "second"), [("nvfp4-packed", ".weight_global_scale"), ("nvfp4", ".weight_scale_2")])
def test_scales_of_blocks_beside_one_of_the_tensor(
    plain: Path, quantised: dict[str, Path], tmp_path: Path, name: str, second: str, fault: str
) -> None:
    """As numbers of fp8, whose range their squares fit into once a factor of 32 is in the scale of the tensor."""

    def smaller(tensors: Tensors) -> None:
        for key in [key for key in tensors if key.endswith(second)]:
            scales = key.replace(second, ".weight_scale")
            tensors[scales] = (tensors[scales].float() / 32).to(torch.float8_e4m3fn)
            tensors[key] = tensors[key] / 32 if "global" in second else tensors[key] * 32

    def wrong(tensors: Tensors) -> None:
        scales = {key: tensors[key].float() for key in tensors if key.endswith(".weight_scale")}
        faulty = {f"{EXPERT}.weight_scale": scales[f"{EXPERT}.weight_scale"]}
        FAULTS[fault][0](faulty)
        tensors |= {key: scale.to(torch.float8_e4m3fn) for key, scale in faulty.items()}

    good = changed(quantised[name], tmp_path / "good", smaller)
    assert compared(plain, good).findings == ()
    bad = changed(good, tmp_path / "bad", wrong)
    (sentence,) = says(compared(plain, bad)).values()
    assert FAULTS[fault][1] in sentence
    (sentence,) = says(compared(good, bad)).values()
    assert FAULTS[fault][2] in sentence


@pytest.mark.parametrize("name", SCALES)
def test_weights_of_another_expert_and_of_nobody(
    plain: Path, quantised: dict[str, Path], tmp_path: Path, name: str
) -> None:
    neighbour = EXPERT.replace("experts.2", "experts.1")

    def exchange(tensors: Tensors) -> None:
        for key in [key for key in tensors if key.startswith(EXPERT)]:
            tensors[key] = tensors[key.replace(EXPERT, neighbour)].clone()

    def drawn(tensors: Tensors) -> None:
        draw = torch.Generator().manual_seed(1)
        for key in [key for key in tensors if key.startswith(EXPERT)]:
            if tensors[key].dtype in (torch.int32, torch.float8_e4m3fn) and tensors[key].dim() == 2:
                rows = torch.randperm(len(tensors[key]), generator=draw)
                tensors[key] = tensors[key].view(torch.int8)[rows].view(tensors[key].dtype)

    report = compared(plain, changed(quantised[name], tmp_path / "other", exchange))
    assert says(report) == {f"{EXPERT}.weight": f"its codes are of A's {neighbour}.weight"}
    report = compared(plain, changed(quantised[name], tmp_path / "drawn", drawn))
    assert says(report) == {f"{EXPERT}.weight": "codes of other weights: no scales make A's numbers of them"}


def test_codes_of_other_numbers_under_scales_that_stayed(
    plain: Path, quantised: dict[str, Path], tmp_path: Path
) -> None:
    def one_step(tensors: Tensors) -> None:
        codes = tensors[f"{EXPERT}.weight"].view(torch.uint8)
        codes[0, :4] ^= 1

    bad = changed(quantised["fp8-blocks"], tmp_path / "bad", one_step)
    assert says(compared(quantised["fp8-blocks"], bad)) == {
        f"{EXPERT}.weight": "other codes, under the scales that A has"
    }
    (sentence,) = says(compared(plain, bad)).values()
    assert sentence == "0.1% of its codes are not the nearest to A's numbers"  # 4 of 96 * 64


def test_two_grids_are_not_compared(quantised: dict[str, Path]) -> None:
    report = compared(quantised["fp8-blocks"], quantised["int4-packed"])
    assert report.exit_code == 3
    assert {finding.sort for finding in report.findings} == {"dtype"}
    assert says(report)[f"{EXPERT}.weight"].startswith("fp8-blocks by 16 x 16 in A, int4-packed by 1 x 16 in B")


def test_experts_of_one_tensor_are_told_by_number(tmp_path: Path) -> None:
    make_random({**SMALL["gpt_oss"], "hidden_size": 64, "intermediate_size": 64}, tmp_path / "bf16")
    quantise(tmp_path / "bf16", FORMATS["mxfp4"], tmp_path / "mxfp4", 32)
    assert compared(tmp_path / "bf16", tmp_path / "mxfp4").exit_code == 0

    def doubled(tensors: Tensors) -> None:
        tensors["model.layers.0.mlp.experts.down_proj_scales"][2] += 1

    bad = changed(tmp_path / "mxfp4", tmp_path / "bad", doubled)
    ((name, sentence),) = says(compared(tmp_path / "bf16", bad)).items()
    assert name == "model.layers.0.mlp.experts.down_proj"
    factor = re.fullmatch(r"experts 2: its scales are about ([\d.]+) times those that fit A's numbers", sentence)
    assert factor is not None
    assert 1.9 < float(factor[1]) < 2.1


def test_the_command(plain: Path, quantised: dict[str, Path], tmp_path: Path) -> None:
    done = inside("weights", plain, quantised["fp8-blocks"])
    assert done.returncode == 0, done.stderr
    assert "32 weights as codes nearest to the other's" in " ".join(done.stdout.split())

    def of_the_other_layer(tensors: Tensors) -> None:
        for name in tensors:
            if "layers.1.mlp.experts" in name and "scale" in name:
                tensors[name] = tensors[name.replace("layers.1", "layers.0")].clone()

    done = inside("weights", plain, changed(quantised["fp8-blocks"], tmp_path / "bad", of_the_other_layer))
    assert done.returncode == 1
    printed = " ".join(done.stdout.split())
    assert "experts 0, 1, 2 and 3" in printed
    assert "12 tensors not as they should be" in printed
