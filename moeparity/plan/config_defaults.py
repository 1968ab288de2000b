"""What transformers assumes of a model where its config.json is silent, as far as it is not the same for all."""

from __future__ import annotations

from typing import Any

THETA = {
    "phimoe": 1_000_000.0,
    "mixtral": 1_000_000.0,
    "gpt_oss": 150_000.0,
    "llama4_text": 500_000.0,
    "flex_olmo": 500_000.0,
    "minimax": 1_000_000.0,
    "lfm2_moe": 1_000_000.0,
    "longcat_flash": 10_000_000.0,
    "minimax_m2": 5_000_000.0,
    "ernie4_5_moe": 500_000.0,
    "hy_v3": 11_158_840.0,
    "solar_open": 1_000_000.0,
    "bailing_hybrid": 6_000_000.0,
    "qwen3_vl_moe": 500_000.0,
}
"""model_type -> the rope_theta of a config.json that has none, where it is not 10000."""
ROPE: dict[str, dict[str, Any]] = {
    "gpt_oss": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    "mellum": {
        "full_attention": {"rope_type": "default", "rope_theta": 500_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    },
    "laguna": {
        "full_attention": {"rope_type": "default", "rope_theta": 500_000.0, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0},
    },
    "mistral4": {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 128.0,
        "original_max_position_embeddings": 8192,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale_all_dim": 1.0,
        "mscale": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
    "mimo_v2_flash": {
        "full_attention": {"rope_type": "default", "rope_theta": 5_000_000.0, "partial_rotary_factor": 0.334},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.334},
    },
}
"""model_type -> the whole rope_parameters that transformers assumes where config.json has none."""
ABSENT: dict[str, dict[str, Any]] = {
    "mimo_v2_flash": {"attention_value_scale": 0.707},
    "dbrx": {"moe_normalize_expert_weights": 1.0},
    "longcat_flash": {"zero_expert_num": 256},
}
"""model_type -> fields of a config.json that has not got them, where null is another value: to MiMo a factor of 1."""
