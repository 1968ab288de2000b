"""The config.json fields of the small checkpoints the tests share, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Shallow = Callable[..., Path]
"""From the name of a small checkpoint, and optionally a number of layers, one that has only these."""

# Expert width 40: no multiple of 32, yet rows of whole 16 bytes, which torch's grouped GEMM asks for.
_QWEN3_MOE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 40,
    "intermediate_size": 96,
    "vocab_size": 512,
    "norm_topk_prob": True,
}
_DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 40,
    "intermediate_size": 96,
    "vocab_size": 512,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 24,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "n_shared_experts": 2,
}


_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 40,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 0.7,
    "original_max_position_embeddings": 128,
}

# Tensors whose sizes are no multiple of 64 bytes.
_DENSE: dict[str, Any] = {
    "hidden_size": 72,
    "intermediate_size": 100,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 301,
}
_MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral",
    "hidden_size": 64,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "vocab_size": 512,
}
_GLM4_MOE: dict[str, Any] = {
    "model_type": "glm4_moe",
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 40,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "n_routed_experts": 16,
    "n_shared_experts": 2,
    "num_experts_per_tok": 4,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "use_qk_norm": True,
    "vocab_size": 512,
}
_GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss",
    "hidden_size": 64,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_local_experts": 16,
    "num_experts_per_tok": 4,
    "sliding_window": 5,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 150000,
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 128,
    },
}
_WINDOW = {"use_sliding_window": True, "sliding_window": 5}
_THETA = {"rope_theta": 10000.0}
_LLAMA_BIASES = {"attention_bias": True, "mlp_bias": True}
_LLAMA3 = {
    **_THETA,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

SMALL: dict[str, dict[str, Any]] = {
    "qwen3_moe": _QWEN3_MOE,
    # As many key/value heads as heads, biases, every second layer dense, raw top-k weights, tied embeddings.
    "qwen3_moe_mha": {
        **_QWEN3_MOE,
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "attention_bias": True,
        "decoder_sparse_step": 2,
        "norm_topk_prob": False,
        "tie_word_embeddings": True,
    },
    # Expert width 37: torch's grouped GEMM, and so transformers' default, refuses it.
    "qwen3_moe_odd": {**_QWEN3_MOE, "moe_intermediate_size": 37},
    # Expert width 36: rows of whole 16 bytes in fp32 only.
    "qwen3_moe_even": {**_QWEN3_MOE, "moe_intermediate_size": 36},
    # One expert per token.
    "qwen3_moe_top1": {**_QWEN3_MOE, "num_hidden_layers": 2, "num_experts_per_tok": 1, "norm_topk_prob": False},
    # Dense, with tensors whose sizes are no multiple of 64 bytes.
    "qwen3": {
        "model_type": "qwen3",
        "hidden_size": 72,
        "intermediate_size": 100,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 301,
        "tie_word_embeddings": True,
    },
    "qwen3_sliding": {**_DENSE, "model_type": "qwen3", "head_dim": 32, **_WINDOW, "max_window_layers": 1},
    "qwen3_moe_sliding": {**_QWEN3_MOE, "num_hidden_layers": 2, **_WINDOW},
    # As many key/value heads as heads, biases everywhere, Llama 3's rope.
    "llama": {**_DENSE, "model_type": "llama", "num_key_value_heads": 6, **_LLAMA_BIASES, "rope_parameters": _LLAMA3},
    "llama_linear": {
        **_DENSE,
        "model_type": "llama",
        "rope_parameters": {**_THETA, "rope_type": "linear", "factor": 3.0},
    },
    "llama_dynamic": {
        **_DENSE,
        "model_type": "llama",
        "max_position_embeddings": 16,
        "rope_parameters": {**_THETA, "rope_type": "dynamic", "factor": 2.0},
    },
    "qwen2": {**_DENSE, "model_type": "qwen2", "tie_word_embeddings": True},
    # The first layer sees everything, the others five tokens.
    "qwen2_sliding": {**_DENSE, "model_type": "qwen2", **_WINDOW, "max_window_layers": 1},
    "mixtral": {**_MIXTRAL, "head_dim": 32},
    "mixtral_sliding": {**_MIXTRAL, "num_key_value_heads": 4, "sliding_window": 5},
    # A dense layer, then sparse ones; two of three layers with a window.
    "qwen2_moe": {
        **{key: value for key, value in _QWEN3_MOE.items() if key != "head_dim"},
        "model_type": "qwen2_moe",
        "shared_expert_intermediate_size": 56,
        "mlp_only_layers": [0],
        **_WINDOW,
    },
    # As many key/value heads as heads, no bias, raw top-k weights, no window.
    "qwen2_moe_plain": {
        **{key: value for key, value in _QWEN3_MOE.items() if key != "head_dim"},
        "model_type": "qwen2_moe",
        "num_key_value_heads": 4,
        "shared_expert_intermediate_size": 40,
        "qkv_bias": False,
        "norm_topk_prob": False,
    },
    "olmoe": {**_MIXTRAL, "model_type": "olmoe", "num_experts": 16, "num_experts_per_tok": 4},
    # As many key/value heads as heads; a limit that bf16 does not hold.
    "olmoe_clip": {
        **_MIXTRAL,
        "model_type": "olmoe",
        "num_key_value_heads": 4,
        "num_experts": 16,
        "attention_bias": True,
        "norm_topk_prob": True,
        "clip_qkv": 0.7,
    },
    # Query and key norms, expert groups, half of each head turned.
    "glm4_moe": _GLM4_MOE,
    # As many key/value heads as heads, no norms, one expert group, a quarter of each head turned, biases.
    "glm4_moe_plain": {
        **_GLM4_MOE,
        "num_key_value_heads": 4,
        "use_qk_norm": False,
        "n_group": 1,
        "topk_group": 1,
        "attention_bias": True,
        "norm_topk_prob": False,
        "rope_parameters": {**_THETA, "rope_type": "default", "partial_rotary_factor": 0.25},
    },
    # Sinks, two of three layers with a window, biases everywhere.
    "gpt_oss": _GPT_OSS,
    # As many key/value heads as heads, no biases in attention, other layers with a window, tied embeddings.
    "gpt_oss_mha": {
        **_GPT_OSS,
        "num_hidden_layers": 2,
        "num_key_value_heads": 4,
        "attention_bias": False,
        "layer_types": ["full_attention", "sliding_attention"],
        "tie_word_embeddings": True,
    },
    # Low-rank queries, expert groups, two shared experts, first layer dense.
    "deepseek_v3": _DEEPSEEK_V3,
    # Full-rank queries, one expert group, biases, yarn with both mscales.
    "deepseek_v3_yarn": {
        **_DEEPSEEK_V3,
        "q_lora_rank": None,
        "n_group": 1,
        "topk_group": 1,
        "attention_bias": True,
        "max_position_embeddings": 4096,
        "rope_parameters": _YARN,
    },
}

_OF_TWO_KINDS = {
    "qwen3_moe_mha",
    "qwen3_sliding",
    "qwen2_sliding",
    "qwen2_moe",
    "glm4_moe",
    "glm4_moe_plain",
    "gpt_oss",
    "gpt_oss_mha",
    "deepseek_v3",
    "deepseek_v3_yarn",
}
"""Whose layers differ: dense or sparse, with a window or without."""


def fields_of(name: str, layers: int) -> dict[str, Any]:
    """With so many layers, and no fewer than it has kinds of them."""
    return {**SMALL[name], "num_hidden_layers": max(layers, 2 if name in _OF_TWO_KINDS else 1)}
