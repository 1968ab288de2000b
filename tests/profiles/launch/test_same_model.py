"""A launch file that names another model than the checkpoint is told at the top; one that may be it is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moeparity.profiles.launch import read

QWEN3_30B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "num_experts": 128,
    "moe_intermediate_size": 768,
    "intermediate_size": 6144,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
}
OLMOE = {
    "architectures": ["OlmoeForCausalLM"],
    "num_hidden_layers": 16,
    "hidden_size": 2048,
    "num_experts": 64,
    "intermediate_size": 1024,
    "num_attention_heads": 16,
    "vocab_size": 50304,
}
DENSE_06B = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 28,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
}


def folder_of(path: Path, config: dict[str, object]) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config), "utf-8")
    return path


def warning_of(folder: Path, model: str, config: dict[str, object]) -> str:
    (folder / "launch.sh").write_text(f"vllm serve {model} -tp 2\n", "utf-8")
    return read(folder / "launch.sh", folder_of(folder / "checkpoint", config)).another_model


@pytest.mark.parametrize(
    ("model", "config", "says"),
    [
        ("Qwen/Qwen3-235B-A22B", QWEN3_30B, "it has 235 billion parameters, and the checkpoint about 31"),
        ("Qwen/Qwen3-8B", QWEN3_30B, "it is a Qwen3ForCausalLM, and the checkpoint a Qwen3MoeForCausalLM"),
        ("deepseek-ai/DeepSeek-V3", QWEN3_30B, "it is a DeepseekV3ForCausalLM"),
        ("Qwen/Qwen3-4B", DENSE_06B, "it has 4 billion parameters, and the checkpoint about 0.75"),
        ("./other", QWEN3_30B, "its num_hidden_layers is 47, and the checkpoint's 48"),
    ],
)
def test_another_model(tmp_path: Path, model: str, config: dict[str, object], says: str) -> None:
    folder_of(tmp_path / "other", {**QWEN3_30B, "num_hidden_layers": 47})
    warning = warning_of(tmp_path, model, config)
    assert says in warning
    assert f"launch.sh runs {model}: " in warning


@pytest.mark.parametrize(
    ("model", "config"),
    [
        ("Qwen/Qwen3-30B-A3B-Thinking-2507", QWEN3_30B),
        ("/models/policy-step-400", QWEN3_30B),
        ("./same", QWEN3_30B),
        ("allenai/OLMoE-1B-7B-0924", OLMOE),
        ("Qwen/Qwen3-0.6B", DENSE_06B),
        ("$MODEL", QWEN3_30B),
    ],
)
def test_one_that_may_be_it(tmp_path: Path, model: str, config: dict[str, object]) -> None:
    folder_of(tmp_path / "same", {**QWEN3_30B, "transformers_version": "5.0"})
    assert warning_of(tmp_path, model, config) == ""


def test_without_a_checkpoint_there_is_nothing_to_compare(tmp_path: Path) -> None:
    (tmp_path / "launch.sh").write_text("vllm serve Qwen/Qwen3-8B\n", "utf-8")
    assert read(tmp_path / "launch.sh").another_model == ""
