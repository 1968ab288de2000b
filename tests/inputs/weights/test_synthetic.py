"""Weights from a seed: the graph's names, shapes and dtypes, whatever is made first, and the same in every process."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from moeparity.engine.forward import forward
from moeparity.errors import CheckpointError
from moeparity.inputs.model import Model, open_model
from moeparity.inputs.weights import synthetic
from moeparity.inputs.weights.checkpoint import Checkpoint
from moeparity.inputs.weights.synthetic import Synthetic
from moeparity.numerics.bits import same_bits
from moeparity.plan.config import Config
from moeparity.plan.expand import expand

GATE, NORM, Q, EMBED = (
    "model.layers.1.mlp.gate.weight",
    "model.layers.0.input_layernorm.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "model.embed_tokens.weight",
)
IDS = torch.arange(12).view(3, 4)


@pytest.fixture
def folder(qwen3_moe: Path, tmp_path: Path) -> Path:
    """The config alone."""
    (tmp_path / "config.json").write_text((qwen3_moe / "config.json").read_text("utf-8"), "utf-8")
    return tmp_path


def synthetic_source(folder: Path, seed: int = 0) -> Synthetic:
    config = Config(folder / "config.json")
    return Synthetic(config, expand(config), seed)


def logits(model: Model) -> torch.Tensor:
    return forward(model, IDS)["logits"]


@pytest.mark.parametrize("name", ["qwen3_moe", "qwen3_moe_mha", "deepseek_v3", "gpt_oss"])
def test_the_tensors_are_those_of_the_files(request: pytest.FixtureRequest, name: str) -> None:
    folder = request.getfixturevalue(name)
    in_files = Checkpoint(folder).entries
    entries = synthetic_source(folder).entries
    assert set(entries) == set(in_files) - {"lm_head.weight"} or set(entries) == set(in_files)
    assert {n: (e.dtype, e.shape) for n, e in entries.items()} == {
        n: (e.dtype, e.shape) for n, e in in_files.items() if n in entries
    }
    source = synthetic_source(folder)
    for tensor_name, entry in entries.items():
        tensor = source.tensor(tensor_name)
        assert tuple(tensor.shape) == entry.shape
        assert tensor.dtype == {"BF16": torch.bfloat16, "F32": torch.float32}[entry.dtype]


def test_scales_are_those_of_transformers_initialisation(folder: Path) -> None:
    source = synthetic_source(folder)
    assert bool((source.tensor(NORM) == 1).all())
    for name in (GATE, Q, EMBED):
        values = source.tensor(name).double()
        assert abs(float(values.std()) / 0.02 - 1) < 4 / (2 * values.numel()) ** 0.5 + 0.01
        assert abs(float(values.mean())) < 4 * 0.02 / values.numel() ** 0.5


def test_biases_are_zero(qwen3_moe_mha: Path, deepseek_v3: Path) -> None:
    bias = synthetic_source(qwen3_moe_mha).tensor("model.layers.0.self_attn.q_proj.bias")
    correction = synthetic_source(deepseek_v3).tensor("model.layers.1.mlp.gate.e_score_correction_bias")
    assert not bias.any()
    assert not correction.any()


def test_sinks_and_the_bias_of_a_routers_gemm_are_drawn(gpt_oss: Path) -> None:
    """As GptOssPreTrainedModel._init_weights has it, where the experts' biases are 0."""
    source, at = synthetic_source(gpt_oss), "model.layers.0."
    for name in ("self_attn.sinks", "mlp.router.bias"):
        values = source.tensor(at + name)
        assert values.dim() == 1
        assert 0 < float(values.abs().max()) < 0.1
    assert not source.tensor(at + "mlp.experts.gate_up_proj_bias").any()
    assert not source.tensor(at + "mlp.experts.down_proj_bias").any()


def test_initializer_range_is_the_configs(folder: Path) -> None:
    fields = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**fields, "initializer_range": 0.5}), "utf-8")
    assert abs(float(synthetic_source(folder).tensor(EMBED).double().std()) - 0.5) < 0.02


@pytest.mark.parametrize("value", ["0.02", 0, -1.0, True])
def test_a_bad_initializer_range_is_refused(folder: Path, value: object) -> None:
    fields = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**fields, "initializer_range": value}), "utf-8")
    with pytest.raises(CheckpointError, match=r"initializer_range is .*; expected a number above 0"):
        synthetic_source(folder)


def test_a_tensor_depends_on_seed_and_name_only(folder: Path) -> None:
    first, second = synthetic_source(folder), synthetic_source(folder)
    for name in reversed(list(second.entries)):
        second.tensor(name)
    assert same_bits(first.tensor(GATE), second.tensor(GATE))
    assert not same_bits(first.tensor(GATE), synthetic_source(folder, seed=1).tensor(GATE))
    experts = [f"model.layers.0.mlp.experts.{e}.up_proj.weight" for e in range(2)]
    assert not same_bits(*(first.tensor(name) for name in experts))


def test_another_process_makes_the_same(folder: Path) -> None:
    code = (
        "import hashlib, sys, pathlib, torch\ntorch.set_num_threads(1)\n"
        "from moeparity.inputs.model import open_model\n"
        f"t = open_model(sys.argv[1], synthetic=5, device='cpu').weights.checkpoint.tensor('{Q}')\n"
        "print(hashlib.sha256(t.view(torch.int16).numpy().tobytes()).hexdigest())"
    )
    process = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    data = synthetic_source(folder, seed=5).tensor(Q).view(torch.int16).numpy().tobytes()
    assert process.stdout.strip() == hashlib.sha256(data).hexdigest()


def test_large_tensors_are_drawn_in_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "_CHUNK", 1000)
    embedding = synthetic_source(folder).tensor(EMBED).double()
    assert len(embedding.flatten().unique()) > 1000
    assert abs(float(embedding.std()) / 0.02 - 1) < 0.05


def test_streamed_and_resident_runs_agree_and_need_no_weights(folder: Path) -> None:
    streamed = open_model(folder, device="cpu", synthetic=3)
    resident = open_model(folder, device="cpu", residency="resident", synthetic=3)
    first = logits(streamed)
    assert bool(first.isfinite().all())
    assert same_bits(first, logits(streamed))
    assert same_bits(first, logits(resident))
    assert not same_bits(first, logits(open_model(folder, device="cpu", synthetic=4)))


def test_a_config_without_a_dtype_means_fp32(folder: Path) -> None:
    fields = json.loads((folder / "config.json").read_text("utf-8"))
    undeclared = {key: value for key, value in fields.items() if key not in {"dtype", "torch_dtype"}}
    (folder / "config.json").write_text(json.dumps(undeclared), "utf-8")
    assert open_model(folder, device="cpu", synthetic=0).dtype == "fp32"
