"""Small random checkpoints of four model families, written without transformers and without moeparity."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

_COMMON: dict[str, Any] = {
    "hidden_act": "silu",
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 128,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}

FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {
        **_COMMON,
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "intermediate_size": 48,
        "norm_topk_prob": True,
        "rms_norm_eps": 1e-6,
    },
    "mixtral": {
        **_COMMON,
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "intermediate_size": 24,
        "rms_norm_eps": 1e-5,
        "sliding_window": None,
    },
    "qwen2_moe": {
        **{key: value for key, value in _COMMON.items() if key != "head_dim"},
        "model_type": "qwen2_moe",
        "architectures": ["Qwen2MoeForCausalLM"],
        "num_experts": 8,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 24,
        "intermediate_size": 48,
        "shared_expert_intermediate_size": 40,
        "norm_topk_prob": False,
        "rms_norm_eps": 1e-6,
    },
    "glm4_moe": {
        **_COMMON,
        "model_type": "glm4_moe",
        "architectures": ["Glm4MoeForCausalLM"],
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 4,
        "n_group": 4,
        "topk_group": 2,
        "moe_intermediate_size": 24,
        "intermediate_size": 48,
        "first_k_dense_replace": 0,
        "routed_scaling_factor": 1.5,
        "norm_topk_prob": True,
        "use_qk_norm": True,
        "attention_bias": False,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    },
}
"""The fields of config.json, `num_hidden_layers` and `dtype` aside."""


def write(folder: Path, family: str, *, seed: int, layers: int, dtype: str, damped: float) -> None:
    """A checkpoint of independent normal weights, norms around 1; the same arguments give the same bytes.

    `damped` scales what leads from experts back to the residual stream: to it a block of a trained model adds little.
    """
    config = {**FAMILIES[family], "num_hidden_layers": layers, "dtype": dtype, "torch_dtype": dtype}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1), "utf-8")
    generator = torch.Generator().manual_seed(seed)
    save_file(
        {name: _drawn(name, shape, dtype, damped, generator) for name, shape in shapes(config).items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )


_LAST = ("down_proj", ".w2.")


def _drawn(name: str, shape: tuple[int, ...], dtype: str, damped: float, generator: torch.Generator) -> Tensor:
    mean, std = (1.0, 0.1) if name.endswith("norm.weight") else (0.0, 0.1 if len(shape) == 1 else shape[-1] ** -0.5)
    if "embed_tokens" in name:
        std = 1.0
    elif any(last in name for last in _LAST):
        std *= damped
    drawn = torch.randn(shape, generator=generator) * std + mean
    return drawn if name.endswith("e_score_correction_bias") else drawn.to(getattr(torch, dtype))


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint by the hub's names."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        shapes |= {f"{at}input_layernorm.weight": (hidden,), f"{at}post_attention_layernorm.weight": (hidden,)}
        shapes |= _attention(config, f"{at}self_attn.")
        shapes |= _mixtral(config, f"{at}block_sparse_moe.") if "num_local_experts" in config else _moe(config, at)
    return shapes | {"model.norm.weight": (hidden,), "lm_head.weight": (vocab, hidden)}


def _attention(config: dict[str, Any], at: str) -> dict[str, tuple[int, ...]]:
    hidden, heads, groups = (config[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads"))
    width = config.get("head_dim", hidden // heads)
    shapes: dict[str, tuple[int, ...]] = {f"{at}o_proj.weight": (hidden, heads * width)}
    for letter, count in (("q", heads), ("k", groups), ("v", groups)):
        shapes[f"{at}{letter}_proj.weight"] = (count * width, hidden)
        if config["model_type"] == "qwen2_moe":
            shapes[f"{at}{letter}_proj.bias"] = (count * width,)
    if config["model_type"] in {"qwen3_moe", "glm4_moe"}:
        shapes |= {f"{at}q_norm.weight": (width,), f"{at}k_norm.weight": (width,)}
    return shapes


def _mixtral(config: dict[str, Any], at: str) -> dict[str, tuple[int, ...]]:
    hidden, width, count = (config[k] for k in ("hidden_size", "intermediate_size", "num_local_experts"))
    shapes: dict[str, tuple[int, ...]] = {f"{at}gate.weight": (count, hidden)}
    for expert in range(count):
        expert_path = f"{at}experts.{expert}."
        shapes |= {f"{expert_path}w1.weight": (width, hidden), f"{expert_path}w3.weight": (width, hidden)}
        shapes[f"{expert_path}w2.weight"] = (hidden, width)
    return shapes


def _moe(config: dict[str, Any], layer: str) -> dict[str, tuple[int, ...]]:
    hidden, width, at = config["hidden_size"], config["moe_intermediate_size"], f"{layer}mlp."
    count = config.get("num_experts") or config["n_routed_experts"]
    shapes: dict[str, tuple[int, ...]] = {f"{at}gate.weight": (count, hidden)}
    for expert in range(count):
        shapes |= _mlp(f"{at}experts.{expert}.", width, hidden)
    if config["model_type"] == "qwen2_moe":
        shapes |= _mlp(f"{at}shared_expert.", config["shared_expert_intermediate_size"], hidden)
        shapes[f"{at}shared_expert_gate.weight"] = (1, hidden)
    if config["model_type"] == "glm4_moe":
        shapes |= _mlp(f"{at}shared_experts.", width * config["n_shared_experts"], hidden)
        shapes[f"{at}gate.e_score_correction_bias"] = (count,)
    return shapes


def _mlp(at: str, width: int, hidden: int) -> dict[str, tuple[int, ...]]:
    wide = {f"{at}{name}_proj.weight": (width, hidden) for name in ("gate", "up")}
    return {**wide, f"{at}down_proj.weight": (hidden, width)}
