"""Mistakes with one of NVFP4's two levels of scales, as `moeparity doctor` names them from a log."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from moeparity.doctor.hypotheses import scales_of_one_layer
from moeparity.inputs.model import open_model
from moeparity.inputs.weights.formats import FORMATS
from moeparity.inputs.weights.quantise import quantise
from tests.checkpoint_factory import FILE
from tests.doctor.programs import command, log, scored, tokens
from tests.engine.rewritten_checkpoints import on_two_levels

Scale = Callable[[Tensor, Tensor], Tensor]
"""Scales of blocks, and that of the tensor -> what codes are multiplied by."""
MISTAKES: dict[str, Scale] = {
    "block-scales-twice": lambda blocks, whole: blocks * blocks / whole,
    "block-scales-inverted": lambda blocks, whole: 1 / blocks / whole,
    "tensor-scale-inverted": lambda blocks, whole: blocks * whole,
    "tensor-scale-missing": lambda blocks, whole: blocks,  # noqa: ARG005
}


@pytest.fixture(scope="module")
def codes(fewer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two levels") / "nvfp4"
    quantise(fewer, FORMATS["nvfp4-packed"], folder, 16)
    return folder


def multiplied_out(codes: Path, folder: Path, mistake: Scale | None = None, layers: str = ".*") -> Path:
    """The checkpoint in bf16, with a mistake in some layers."""
    tensors, config = load_file(codes / FILE), json.loads((codes / "config.json").read_text())
    if mistake is not None:
        on_two_levels(mistake, f"model.layers.{layers}")(tensors, config, {})
    on_two_levels(lambda blocks, whole: blocks / whole, "")(tensors, config, {})
    del config["quantization_config"]
    shutil.copytree(codes, folder)
    save_file({name: x.contiguous() for name, x in tensors.items()}, folder / FILE, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("layers", ["1", ".*"], ids=["in one layer", "in all layers"])
@pytest.mark.parametrize("fault", MISTAKES)
def test_it_is_named_or_nothing_is(codes: Path, tmp_path: Path, fault: str, layers: str) -> None:
    right, faulty = (multiplied_out(codes, tmp_path / str(i), m, layers) for i, m in enumerate((None, MISTAKES[fault])))
    ids = tokens(12, 16)
    path = log(tmp_path / "log.jsonl", ids, scored(faulty, ids, 4), scored(right, ids, 8))
    of = command(path, codes, "--sampler", "hf-default", out=tmp_path / "out.json")
    name = fault if layers == ".*" else f"{fault} of layer 1"
    if fault == "tensor-scale-inverted":
        # Values that no norm can square: all logits are 0, which has other causes too.
        assert (of["answer"], of["blame"]["named"], of["exit"]) == ("undecided", [], 3)
        assert f"{name} (sampler)" in of["rivals"]
        assert "`moeparity weights`" in of["blame"]["would_decide"]
        return
    assert (of["blame"]["named"], of["exit"]) == ([name], 1)


def test_other_formats_have_no_two_levels(fewer: Path, codes: Path, tmp_path: Path) -> None:
    quantise(fewer, FORMATS["fp8-blocks"], tmp_path / "fp8", 16)
    of_fp8, of_nvfp4 = (
        {each.name.partition(" of layer")[0] for each in scales_of_one_layer(open_model(path, device="cpu").graph)}
        for path in (tmp_path / "fp8", codes)
    )
    assert of_nvfp4 - of_fp8 == {*MISTAKES}
