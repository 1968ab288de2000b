"""`moeparity init` on checkpoints made by transformers: what it writes runs at once."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as Decoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from moeparity.bisection.init import write_starter
from moeparity.bisection.init.tokens import PROMPTS
from moeparity.bisection.prepare import prepare
from moeparity.errors import CheckpointError, MoeparityError
from moeparity.inputs.tokens.reader import recipe_tokens
from moeparity.inputs.weights import store
from moeparity.plan.spec import reader
from tests.command import alone, inside

EXIT = {"pass": 0, "fail": 1, "inconclusive": 3}


def byte_tokenizer(path: Path) -> None:
    """A byte-level tokenizer of 256 tokens, as small as they come."""
    vocabulary = {character: i for i, character in enumerate(sorted(ByteLevel.alphabet()))}
    inner = Tokenizer(BPE(vocabulary, []))
    inner.pre_tokenizer = ByteLevel(add_prefix_space=False)
    inner.decoder = Decoder()
    inner.save(str(path))


@pytest.fixture
def model(qwen3_moe: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(qwen3_moe, tmp_path / "my model"))


def change(folder: Path, **fields: Any) -> None:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, **fields}), "utf-8")


@pytest.mark.parametrize("kind", ["text", "ids", "synthetic"])
def test_what_init_writes_bisects_at_once(model: Path, tmp_path: Path, kind: str) -> None:
    if kind == "text":
        byte_tokenizer(model / "tokenizer.json")
    if kind == "synthetic":
        (model / "model.safetensors").unlink()
    # bf16 GEMMs are slow where the processor has none.
    change(model, dtype="float32")
    done = (alone if kind == "text" else inside)("init", model, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "next: moeparity bisect recipe.yaml" in done.stdout
    bisected = inside("bisect", "recipe.yaml", "--json", "report.json", "--device", "cpu", cwd=tmp_path)
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert bisected.returncode == EXIT[report["verdict"]["status"]], bisected.stderr
    assert report["verdict"]["status"].upper() in bisected.stdout
    assert report["run"]["sequences"] == len(PROMPTS) >= 25
    assert report["run"]["scored_tokens"] == 16 * len(PROMPTS)
    assert report["roots"][0]["node"] == "layers[0].attention.attend"
    assert len(report["warnings"]) == (kind == "synthetic")
    assert (report["run"]["pads"] > 0) == (kind == "text")
    shown = inside("show", "plan", "recipe.yaml", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr


@pytest.mark.parametrize("name", ["qwen3_moe_mha", "qwen3_moe_odd", "qwen3", "deepseek_v3"])
def test_every_kind_of_model_gets_a_recipe_that_binds(
    request: pytest.FixtureRequest, tmp_path: Path, name: str
) -> None:
    starter = write_starter(request.getfixturevalue(name), tmp_path / "recipe.yaml")
    study = prepare(starter.recipe, device="cpu")
    assert study.toggles
    assert len(study.tokens.input_ids) == len(PROMPTS)
    assert study.recipe.candidate.profile == ("hf-eager" if name == "qwen3_moe_odd" else "hf-default")


OPTIONAL = re.compile(
    r"^( *)# (?=(?:weights|tokenizer|sampled_from|set|by|split|swap|oracle|replay|expect): ?|  \"|\"layers)",
    re.MULTILINE,
)


@pytest.mark.parametrize("name", ["qwen3_moe", "qwen3_moe_odd", "qwen3"])
def test_the_lines_in_comments_are_right_too(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> None:
    """All of them uncommented; `sampled_from` takes the place of `sample`."""
    starter = write_starter(request.getfixturevalue(name), tmp_path / "recipe.yaml")
    text, line_count = OPTIONAL.subn(r"\1", starter.recipe.read_text("utf-8"))
    assert line_count >= 9
    assert "# " in text
    text = re.sub(r"^  sample: .*\n", "", text, flags=re.MULTILINE)
    (tmp_path / "all.yaml").write_text(text, "utf-8")
    study = prepare(tmp_path / "all.yaml", device="cpu")
    recipe = study.recipe
    assert (recipe.by, recipe.split, recipe.synthetic, recipe.tokens.sampled_from) == ("layer", 1, 0, "candidate")
    assert recipe.candidate.set
    assert len(recipe.swap) == 1
    assert recipe.oracle
    assert recipe.replay
    assert recipe.expect.verdict == "pass"


def test_text_prompts_are_read_with_the_checkpoints_tokenizer(model: Path, tmp_path: Path) -> None:
    byte_tokenizer(model / "tokenizer.json")
    starter = write_starter(model, tmp_path / "recipe.yaml")
    tokens = recipe_tokens(reader.read_recipe(starter.recipe), starter.recipe, model)
    assert tokens.attention_mask.sum(1).tolist() == [len(text.encode("utf-8")) for text in PROMPTS]


@pytest.mark.parametrize("reason", ["outside the vocabulary", "no tokenizer.json", "pip install"])
def test_why_there_is_no_text_is_said(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    byte_tokenizer(model / "tokenizer.json")
    if reason == "outside the vocabulary":
        change(model, vocab_size=200)
        (model / "model.safetensors").unlink()
    elif reason == "pip install":
        monkeypatch.setitem(sys.modules, "tokenizers", None)
    else:
        (model / "tokenizer.json").write_text("{}", "utf-8")
    starter = write_starter(model, tmp_path / "recipe.yaml")
    assert reason in starter.recipe.read_text("utf-8")
    recipe = reader.read_recipe(starter.recipe)
    assert recipe.tokens.tokenizer is None
    vocabulary = json.loads((model / "config.json").read_text("utf-8"))["vocab_size"]
    ids = recipe_tokens(recipe, starter.recipe, model).input_ids
    assert int(ids.max()) < vocabulary
    assert len(ids.unique()) > vocabulary / 2


def test_files_are_overwritten_only_by_force(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine.yaml"
    write_starter(model, out)
    out.write_text("mine", "utf-8")
    with pytest.raises(
        MoeparityError, match=r"mine\.yaml: is there already\. Name another file with --out, or add --force"
    ):
        write_starter(model, out)
    assert out.read_text("utf-8") == "mine"
    out.unlink()
    with pytest.raises(MoeparityError, match=r"mine\.tokens\.jsonl: is there already"):
        write_starter(model, out)
    write_starter(model, out, force=True)
    assert reader.read_recipe(out).checkpoint == "my model"


def test_few_tokens_where_each_costs_a_pass_over_the_files(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "available_bytes", lambda _: 1000)
    starter = write_starter(model, tmp_path / "recipe.yaml")
    sample = reader.read_recipe(starter.recipe).tokens.sample
    assert sample is not None
    assert sample.new_tokens == 4


def test_pickled_weights_are_not_taken_for_none(model: Path, tmp_path: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="pickled weights are not read"):
        write_starter(model, tmp_path / "recipe.yaml")
    assert not (tmp_path / "recipe.yaml").exists()


Weights = dict[str, torch.Tensor]
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


def with_nan(weights: Weights) -> None:
    weights[Q_PROJ].view(-1)[5] = math.nan


def with_infinity(weights: Weights) -> None:
    weights[Q_PROJ].view(-1)[5] = -math.inf


def without_a_tensor(weights: Weights) -> None:
    del weights[Q_PROJ]


def misshapen(weights: Weights) -> None:
    weights[Q_PROJ] = weights[Q_PROJ][:, :-1].contiguous()


def in_fp8(weights: Weights) -> None:
    weights[Q_PROJ] = weights[Q_PROJ].to(torch.float8_e4m3fn)


def packed_to_int4(weights: Weights) -> None:
    rows, columns = weights.pop(Q_PROJ).shape
    weights[Q_PROJ.replace("weight", "qweight")] = torch.zeros(rows // 8, columns, dtype=torch.int32)


def with_more_tensors(weights: Weights) -> None:
    weights["model.layers.0.self_attn.q_proj.weight_scale_inv"] = torch.ones(1)


BAD: dict[Callable[[Weights], None], str] = {
    with_nan: r"q_proj\.weight: 1 of \d+ values are NaN or infinite\. The checkpoint is damaged",
    with_infinity: r"q_proj\.weight: 1 of \d+ values are NaN or infinite\. The checkpoint is damaged",
    without_a_tensor: r"tensor 'model\.layers\.0\.self_attn\.q_proj\.weight' is missing",
    misshapen: r"Do config\.json and weights belong together\?",
    in_fp8: r"is F8_E4M3 .*, which is no weight by itself: fp8-blocks needs .*weight_scale_inv; fp8 needs",
    packed_to_int4: r"qweight is I32 .*, which is no weight by itself: awq needs .*q_proj\.scales",
    with_more_tensors: r"holds tensors the qwen3_moe graph does not use: .*weight_scale_inv",
}


@pytest.mark.parametrize("damage", BAD, ids=lambda damage: damage.__name__)
def test_weights_that_cannot_be_run_are_refused_and_nothing_is_written(
    model: Path, tmp_path: Path, damage: Callable[[Weights], None]
) -> None:
    """What `bisect` would refuse is no start."""
    weights = {name: tensor.clone() for name, tensor in load_file(model / "model.safetensors").items()}
    damage(weights)
    save_file(weights, model / "model.safetensors")
    with pytest.raises(CheckpointError, match=BAD[damage]):
        write_starter(model, tmp_path / "recipe.yaml")
    assert not list(tmp_path.glob("*.yaml"))
    assert not list(tmp_path.glob("*.jsonl"))


def test_a_quantisation_that_the_weights_do_not_have_is_told(model: Path, tmp_path: Path) -> None:
    """A leftover of a dequantised copy: it runs as it is, which engines that read config.json would not do."""
    change(model, quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})
    done = inside("init", model, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "note: config.json has a quantization_config (fp8), and the weights are " in done.stdout
    comment = " ".join(line[2:] for line in (tmp_path / "recipe.yaml").read_text().splitlines() if line[:2] == "# ")
    assert "quantization_config (fp8)" in comment
    assert "they run unquantised here" in comment
    assert prepare(tmp_path / "recipe.yaml", device="cpu").toggles


def test_quantised_weights_that_say_so_are_refused(model: Path, tmp_path: Path) -> None:
    change(model, quantization_config={"quant_method": "fp8"})
    weights = {name: tensor.clone() for name, tensor in load_file(model / "model.safetensors").items()}
    in_fp8(weights)
    save_file(weights, model / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=r"is F8_E4M3 \[.*\], which is no weight by itself: fp8-blocks needs .*_scale_inv"
    ):
        write_starter(model, tmp_path / "recipe.yaml")
