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
_QWEN3_NEXT: dict[str, Any] = {
    "model_type": "qwen3_next",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_conv_kernel_dim": 4,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 56,
    "intermediate_size": 96,
    "vocab_size": 512,
}
_QWEN3_5_MOE: dict[str, Any] = {
    **{key: value for key, value in _QWEN3_NEXT.items() if key != "intermediate_size"},
    "model_type": "qwen3_5_moe_text",
}
_MINIMAX_M2: dict[str, Any] = {
    **_MIXTRAL,
    "model_type": "minimax_m2",
    "head_dim": 32,
    "num_local_experts": 16,
    "num_experts_per_tok": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
}
_QWEN3_VL_MOE: dict[str, Any] = {
    "model_type": "qwen3_vl_moe",
    # No token of text is one of an image, or of a video.
    "image_token_id": 512,
    "video_token_id": 513,
    "text_config": {
        **{key: value for key, value in _QWEN3_MOE.items() if key != "norm_topk_prob"},
        "model_type": "qwen3_vl_moe_text",
        "mlp_only_layers": [1],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [6, 5, 5]},
    },
    "vision_config": {
        "model_type": "qwen3_vl_moe_vision",
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "patch_size": 4,
        "out_hidden_size": 64,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0, 1],
    },
}
_GLM4V: dict[str, Any] = {
    "model_type": "glm4v_moe",
    "image_token_id": 512,
    "video_token_id": 513,
    "text_config": {
        **{key: value for key, value in _GLM4_MOE.items() if key not in {"use_qk_norm", "partial_rotary_factor"}},
        "model_type": "glm4v_moe_text",
        "pad_token_id": None,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [3, 3, 2],
        },
    },
    "vision_config": {
        "model_type": "glm4v_moe_vision",
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "patch_size": 4,
        "image_size": 32,
        "out_hidden_size": 64,
    },
}
_KIMI_K25: dict[str, Any] = {
    "model_type": "kimi_k25",
    "image_token_id": 512,
    "video_token_id": 513,
    "tie_word_embeddings": False,
    "projection_hidden_size": 32,
    "text_config": _DEEPSEEK_V3,
    "vision_config": {
        "model_type": "kimi_k25_vision",
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 2,
        "patch_size": 4,
        "pos_emb_height": 8,
        "pos_emb_width": 8,
    },
}
_FLEX_OLMO: dict[str, Any] = {**_MIXTRAL, "model_type": "flex_olmo", "num_experts": 7, "pad_token_id": None}
_ERNIE: dict[str, Any] = {
    "model_type": "ernie4_5_moe",
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "moe_num_experts": 16,
    "moe_k": 4,
    "vocab_size": 512,
}
_DEEPSEEK_V2: dict[str, Any] = {**_DEEPSEEK_V3, "model_type": "deepseek_v2"}
_GRANITE: dict[str, Any] = {
    **_MIXTRAL,
    "model_type": "granitemoe",
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.03,
    "residual_multiplier": 0.22,
    "logits_scaling": 0.3,
}
_GRANITE_HYBRID: dict[str, Any] = {
    **_GRANITE,
    "model_type": "granitemoehybrid",
    "shared_intermediate_size": 56,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 24,
    "mamba_chunk_size": 16,
}
_NEMOTRON_H: dict[str, Any] = {
    "model_type": "nemotron_h",
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 40,
    "moe_shared_expert_intermediate_size": 56,
    "layer_types": ["linear_attention", "moe", "full_attention", "mlp"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 24,
    "chunk_size": 16,
    "time_step_min": 0.5,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "vocab_size": 512,
}
_JAMBA: dict[str, Any] = {
    **{key: value for key, value in _MIXTRAL.items() if key != "num_local_experts"},
    "model_type": "jamba",
    "num_hidden_layers": 3,
    "num_experts": 8,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 0,
    "mamba_d_state": 24,
}
_HUNYUAN: dict[str, Any] = {
    **{key: value for key, value in _MIXTRAL.items() if key not in {"num_local_experts", "num_experts_per_tok"}},
    "model_type": "hunyuan_v1_moe",
    "num_experts": 16,
    "moe_topk": 4,
    "head_dim": 32,
    "max_position_embeddings": 16,
    "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 1.0, "alpha": 1000.0},
}
_EXAONE: dict[str, Any] = {
    **{key: value for key, value in _GLM4_MOE.items() if key not in {"use_qk_norm", "n_routed_experts"}},
    "model_type": "exaone_moe",
    "num_experts": 16,
    "num_shared_experts": 2,
    "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
_AFMOE: dict[str, Any] = {
    **_QWEN3_MOE,
    "model_type": "afmoe",
    "num_shared_experts": 1,
    "num_dense_layers": 1,
    "route_scale": 2.5,
    "mup_enabled": True,
    "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
_KIMI_LINEAR: dict[str, Any] = {
    **{key: value for key, value in _DEEPSEEK_V3.items() if key not in {"first_k_dense_replace", "n_routed_experts"}},
    "model_type": "kimi_linear",
    "q_lora_rank": None,
    "num_experts": 16,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "linear_num_heads": 4,
    "linear_head_dim": 16,
    "pad_token_id": None,
}
_BAILING: dict[str, Any] = {
    **{
        key: value
        for key, value in _KIMI_LINEAR.items()
        if key not in {"q_lora_rank", "linear_head_dim", "linear_num_heads"}
    },
    "model_type": "bailing_hybrid",
    "head_dim": 16,
    "num_mtp_layers": 0,
    "eos_token_id": None,
}
_FLINT: dict[str, Any] = {
    **_QWEN3_MOE,
    "model_type": "flint",
    "shared_expert_intermediate_size": 56,
    "mlp_only_layers": [0],
    "sliding_window": 5,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
}
_MINIMAX: dict[str, Any] = {
    **_MIXTRAL,
    "model_type": "minimax",
    "num_hidden_layers": 3,
    "head_dim": 16,
    "block_size": 8,
    "layer_types": ["full_attention", "linear_attention", "full_attention"],
    "full_attn_alpha_factor": 3.5,
    "full_attn_beta_factor": 0.9,
    "linear_attn_alpha_factor": 3.2,
    "linear_attn_beta_factor": 1.1,
    "mlp_alpha_factor": 3.1,
    "mlp_beta_factor": 0.7,
}
_KOLIBRI: dict[str, Any] = {
    **{key: value for key, value in _QWEN3_MOE.items() if key not in {"intermediate_size", "norm_topk_prob"}},
    "model_type": "kolibri1",
    "num_key_value_heads": 1,
    "shared_expert_intermediate_size": 56,
    "sliding_window": 5,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
}
_COHERE: dict[str, Any] = {
    **{key: value for key, value in _MIXTRAL.items() if key != "num_local_experts"},
    "model_type": "cohere2_moe",
    "head_dim": 32,
    "num_hidden_layers": 3,
    "num_experts": 8,
    "num_shared_experts": 2,
    "sliding_window": 5,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "prefix_dense_intermediate_size": 96,
    "eos_token_id": 1,
}
_DEEPSEEK_V32: dict[str, Any] = {
    **_DEEPSEEK_V3,
    "model_type": "deepseek_v32",
    "index_topk": 4,
    "index_head_dim": 24,
    "index_n_heads": 3,
}
_GLM_MOE_DSA: dict[str, Any] = {
    **_DEEPSEEK_V32,
    "model_type": "glm_moe_dsa",
    "n_group": 1,
    "topk_group": 1,
    "indexer_types": ["full", "shared", "full"],
}
_MIMO: dict[str, Any] = {
    **{key: value for key, value in _QWEN3_MOE.items() if key != "num_experts"},
    "model_type": "mimo_v2_flash",
    "num_key_value_heads": 1,
    "n_routed_experts": 16,
    "v_head_dim": 24,
    "sliding_window": 5,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
}
_GRANITE_SWA: dict[str, Any] = {
    **_MIXTRAL,
    "model_type": "granitemoe_swa",
    "num_hidden_layers": 3,
    "sliding_window": 5,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
}
_MISTRAL4: dict[str, Any] = {
    **_DEEPSEEK_V3,
    "model_type": "mistral4",
    "routed_scaling_factor": 1.5,
    "rope_parameters": {**_YARN, "beta_slow": 0.1, "original_max_position_embeddings": 5, "llama_4_scaling_beta": 0.3},
}
_LLAMA4: dict[str, Any] = {
    **_MIXTRAL,
    "model_type": "llama4_text",
    "num_hidden_layers": 3,
    "num_experts_per_tok": 1,
    "head_dim": 32,
    "intermediate_size_mlp": 96,
    "moe_layers": [1, 2],
    "no_rope_layers": [1, 0, 1],
    "attention_chunk_size": 5,
    "floor_scale": 3,
    "attn_scale": 0.3,
}
_LFM2: dict[str, Any] = {
    **{key: value for key, value in _QWEN3_MOE.items() if key != "head_dim"},
    "model_type": "lfm2_moe",
    "num_dense_layers": 1,
    "layer_types": ["conv", "full_attention", "conv"],
}
_LAGUNA: dict[str, Any] = {
    **_QWEN3_MOE,
    "model_type": "laguna",
    "num_attention_heads_per_layer": [4, 6, 2],
    "shared_expert_intermediate_size": 48,
    "moe_routed_scaling_factor": 2.5,
    "moe_router_logit_softcapping": 1.5,
    "sliding_window": 5,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
}
_LONGCAT: dict[str, Any] = {
    "model_type": "longcat_flash",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "n_routed_experts": 10,
    "zero_expert_num": 6,
    "moe_topk": 5,
    "expert_ffn_hidden_size": 40,
    "ffn_hidden_size": 96,
    "vocab_size": 512,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 16,
    "head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 24,
    "routed_scaling_factor": 2.5,
}
_DBRX: dict[str, Any] = {
    "model_type": "dbrx",
    "d_model": 64,
    "n_heads": 4,
    "num_hidden_layers": 2,
    "max_seq_len": 64,
    "vocab_size": 512,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.9, "rope_theta": 500000.0},
    "ffn_config": {"ffn_hidden_size": 40, "moe_num_experts": 16, "moe_top_k": 5},
}
_PHI: dict[str, Any] = {**_MIXTRAL, "model_type": "phimoe", "num_experts_per_tok": 2}
_MELLUM: dict[str, Any] = {
    **_QWEN3_MOE,
    "model_type": "mellum",
    "sliding_window": 5,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
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
    # Heads as wide as vLLM's attention in segments takes them.
    "qwen3_moe_wide_heads": {**_QWEN3_MOE, "num_hidden_layers": 2, "head_dim": 64},
    "deepseek_v3_wide_values": {**_DEEPSEEK_V3, "v_head_dim": 64},
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
    # Gated delta nets whose heads of keys serve two heads of values each, and a layer of gated attention.
    "qwen3_next": _QWEN3_NEXT,
    # As many heads of keys as of values, of odd widths, as many key/value heads as heads, biases, raw top-k weights, a
    # dense layer, tied embeddings.
    "qwen3_next_mha": {
        **_QWEN3_NEXT,
        "num_key_value_heads": 4,
        "linear_num_key_heads": 3,
        "linear_num_value_heads": 3,
        "linear_value_head_dim": 19,
        "attention_bias": True,
        "mlp_only_layers": [0],
        "norm_topk_prob": False,
        "tie_word_embeddings": True,
    },
    # Of the last layer five tokens are seen; biases, expert groups.
    "dots1": {
        **{key: value for key, value in _GLM4_MOE.items() if key != "use_qk_norm"},
        "model_type": "dots1",
        "attention_bias": True,
        "sliding_window": 5,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    },
    # One key/value head, one expert per token, no expert groups.
    "solar_open": {
        **_MINIMAX_M2,
        "model_type": "solar_open",
        "num_key_value_heads": 1,
        "n_routed_experts": 16,
        "num_experts_per_tok": 1,
        "n_shared_experts": 1,
        "moe_intermediate_size": 40,
        "routed_scaling_factor": 2.5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    # Low-rank queries and keys, a layer in the middle dense.
    "glm4_moe_lite": {
        **{key: value for key, value in _DEEPSEEK_V3.items() if key != "first_k_dense_replace"},
        "model_type": "glm4_moe_lite",
        "mlp_layer_types": ["sparse", "dense", "sparse"],
        "routed_scaling_factor": 1.8,
    },
    # Half of each head turned, one norm for all heads.
    "minimax_m2": _MINIMAX_M2,
    # As many key/value heads as heads, an odd number of columns turned in pairs, one expert per token.
    "minimax_m2_mha": {
        **_MINIMAX_M2,
        "num_key_value_heads": 4,
        "num_experts_per_tok": 1,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.44},
    },
    # Norms behind attention and experts.
    "flex_olmo": {**_FLEX_OLMO, "num_experts_per_tok": 5},
    "flex_olmo_mha": {
        **_FLEX_OLMO,
        "num_key_value_heads": 4,
        "attention_bias": True,
        "norm_topk_prob": True,
        "tie_word_embeddings": True,
    },
    # Experts by a sigmoid, a dense layer in front, biases.
    "hy_v3": {
        **{key: value for key, value in _QWEN3_MOE.items() if key != "norm_topk_prob"},
        "model_type": "hy_v3",
        "attention_bias": True,
        "num_shared_experts": 2,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
    },
    # Pairs turned in fp32; experts in every second layer, two shared ones; a router in fp32; tied embeddings.
    "ernie4_5_moe": _ERNIE,
    # As many key/value heads as heads, one expert per token.
    "ernie4_5_moe_mha": {
        **_ERNIE,
        "num_key_value_heads": 4,
        "moe_k": 1,
        "moe_num_shared_experts": 1,
        "moe_layer_interval": 2,
        "moe_layer_start_index": 0,
        "tie_word_embeddings": False,
    },
    # Experts of the best groups, by their best; low-rank queries; two shared experts.
    "deepseek_v2": {**_DEEPSEEK_V2, "topk_method": "group_limited_greedy"},
    # Full-rank queries, no groups of experts, biases, yarn with both mscales, one expert per token.
    "deepseek_v2_yarn": {
        **_DEEPSEEK_V2,
        "topk_method": "greedy",
        "q_lora_rank": None,
        "attention_bias": True,
        "num_experts_per_tok": 1,
        "routed_scaling_factor": 2.5,
        "max_position_embeddings": 4096,
        "rope_parameters": _YARN,
    },
    # Four multipliers; experts in one tensor.
    "granitemoe": _GRANITE,
    # As many key/value heads as heads, biases, tied embeddings, no multipliers but that of attention.
    "granitemoe_mha": {
        **_MIXTRAL,
        "model_type": "granitemoe",
        "num_key_value_heads": 4,
        "attention_bias": True,
        "attention_multiplier": 0.25,
        "tie_word_embeddings": True,
    },
    # A shared expert with gate and up in one matrix.
    "granitemoeshared": {**_GRANITE, "model_type": "granitemoeshared", "shared_intermediate_size": 56},
    # None, as many key/value heads as heads, biases, one expert per token.
    "granitemoeshared_mha": {
        **_MIXTRAL,
        "model_type": "granitemoeshared",
        "num_key_value_heads": 4,
        "num_experts_per_tok": 1,
        "attention_bias": True,
        "tie_word_embeddings": True,
    },
    # Mamba 2 in chunks of 16 tokens, two groups of heads; attention without rope.
    "granitemoehybrid": _GRANITE_HYBRID,
    # One group of three odd heads, a state of one, three taps, biases, rope, as many key/value heads as heads, one
    # expert per token, tied embeddings.
    "granitemoehybrid_odd": {
        **_MIXTRAL,
        "model_type": "granitemoehybrid",
        "hidden_size": 72,
        "num_key_value_heads": 4,
        "num_experts_per_tok": 1,
        "attention_bias": True,
        "position_embedding_type": "rope",
        "shared_intermediate_size": 44,
        "num_hidden_layers": 3,
        "layer_types": ["full_attention", "linear_attention", "linear_attention"],
        "mamba_expand": 1,
        "mamba_n_heads": 3,
        "mamba_n_groups": 1,
        "mamba_d_state": 1,
        "mamba_d_conv": 3,
        "mamba_conv_bias": False,
        "mamba_proj_bias": True,
        "mamba_chunk_size": 7,
        "tie_word_embeddings": True,
    },
    # A block a layer; a floor under the steps of Mamba 2, experts by squared ReLU in groups.
    "nemotron_h": _NEMOTRON_H,
    # Experts of latents, one per token, no groups; one group of three odd heads, a state of one; biases.
    "nemotron_h_latent": {
        **_NEMOTRON_H,
        "layer_types": ["full_attention", "moe", "linear_attention", "mlp"],
        "num_key_value_heads": 4,
        "moe_latent_size": 24,
        "num_experts_per_tok": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": False,
        "mamba_num_heads": 3,
        "mamba_head_dim": 19,
        "n_groups": 1,
        "ssm_state_size": 1,
        "conv_kernel": 3,
        "use_conv_bias": False,
        "use_bias": True,
        "mlp_bias": True,
        "chunk_size": 7,
        "tie_word_embeddings": True,
    },
    # Mamba 1 with experts, attention without rope with a dense MLP.
    "jamba": _JAMBA,
    # A state of one, three taps, a rank of five, as many key/value heads as heads, one expert per token, tied
    # embeddings; experts in the layer with attention.
    "jamba_odd": {
        **_JAMBA,
        "num_key_value_heads": 4,
        "num_experts_per_tok": 1,
        "attn_layer_offset": 0,
        "mamba_expand": 1,
        "mamba_d_state": 1,
        "mamba_d_conv": 3,
        "mamba_dt_rank": 5,
        "mamba_conv_bias": False,
        "tie_word_embeddings": True,
    },
    # Norms of queries and keys behind the rope.
    "hunyuan_v1_moe": _HUNYUAN,
    # As many key/value heads as heads, biases, one expert per token, tied embeddings.
    "hunyuan_v1_moe_mha": {
        **_HUNYUAN,
        "num_key_value_heads": 4,
        "moe_topk": 1,
        "attention_bias": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": True,
    },
    # A layer without window and rope, a dense one in front.
    "exaone_moe": _EXAONE,
    # As many key/value heads as heads, the first layer without rope, one expert per token, no groups.
    "exaone_moe_mha": {
        **_EXAONE,
        "num_key_value_heads": 4,
        "num_experts_per_tok": 1,
        "n_group": 1,
        "topk_group": 1,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "mlp_layer_types": ["sparse", "dense", "sparse"],
        "norm_topk_prob": False,
        "tie_word_embeddings": True,
    },
    # Gated attention, a layer without window and rope, a dense one in front, a multiplied embedding.
    "afmoe": _AFMOE,
    # As many key/value heads as heads, biases, one expert per token, two shared ones, the first layer without rope.
    "afmoe_mha": {
        **_AFMOE,
        "num_key_value_heads": 4,
        "num_experts_per_tok": 1,
        "num_shared_experts": 2,
        "attention_bias": True,
        "num_dense_layers": 0,
        "mup_enabled": False,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "tie_word_embeddings": True,
    },
    # Kimi Delta Attention and latent attention without rope; expert groups, a dense layer in front.
    "kimi_linear": _KIMI_LINEAR,
    # Heads of odd widths, low-rank queries, biases, one expert per token, no groups.
    "kimi_linear_odd": {
        **_KIMI_LINEAR,
        "q_lora_rank": 24,
        "attention_bias": True,
        "num_experts_per_tok": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": False,
        "linear_num_heads": 3,
        "linear_head_dim": 19,
        "linear_conv_kernel_dim": 3,
        "layer_types": ["full_attention", "linear_attention", "linear_attention"],
        "mlp_layer_types": ["sparse", "sparse", "sparse"],
        "tie_word_embeddings": True,
    },
    # Kimi Delta Attention with a bounded decay, latent attention with a gate for each head; a dense layer in front.
    "bailing_hybrid": _BAILING,
    # Three heads of odd widths, no bound, biases, one expert per token, no groups.
    "bailing_hybrid_odd": {
        **_BAILING,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 19,
        "short_conv_kernel_size": 3,
        "kda_safe_gate": False,
        "attention_bias": True,
        "num_experts_per_tok": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": False,
        "layer_types": ["full_attention", "linear_attention", "linear_attention"],
        "mlp_layer_types": ["sparse", "sparse", "sparse"],
    },
    # A norm behind the experts; expert groups, a dense layer in front.
    "axk1": {**_DEEPSEEK_V3, "model_type": "axk1"},
    # Sinks, a layer with window and rope, a dense one in front.
    "flint": _FLINT,
    # As many key/value heads as heads, biases, one expert per token, raw scores, tied embeddings.
    "flint_mha": {
        **_FLINT,
        "num_key_value_heads": 4,
        "num_experts_per_tok": 1,
        "attention_bias": True,
        "norm_topk_prob": False,
        "mlp_only_layers": [],
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "tie_word_embeddings": True,
    },
    # Lightning attention in blocks of eight tokens; every branch multiplied.
    "minimax": _MINIMAX,
    # Three heads of odd widths, as many of keys and values, one expert per token, tied embeddings.
    "minimax_mha": {
        **_MIXTRAL,
        "model_type": "minimax",
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 22,
        "block_size": 5,
        "num_experts_per_tok": 1,
        "num_hidden_layers": 3,
        "layer_types": ["full_attention", "linear_attention", "full_attention"],
        "tie_word_embeddings": True,
    },
    # A rope of its own for layers with a window, a dense layer in front.
    "mellum": _MELLUM,
    # As many key/value heads as heads, biases, one expert per token, raw scores, yarn where there is no window.
    "mellum_mha": {
        **_MELLUM,
        "num_key_value_heads": 4,
        "num_experts_per_tok": 1,
        "attention_bias": True,
        "norm_topk_prob": False,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "mlp_layer_types": ["sparse", "sparse", "sparse"],
        "rope_parameters": {
            "full_attention": {**_YARN, "rope_theta": 500000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
        },
        "tie_word_embeddings": True,
    },
    # Experts ranked by logits and a bias, norms behind both blocks, a layer with window and rope, one key/value head.
    "kolibri1": _KOLIBRI,
    # As many key/value heads as heads, three experts per token of whose scores the sum is one, tied embeddings.
    "kolibri1_mha": {
        **_KOLIBRI,
        "num_key_value_heads": 4,
        "num_experts_per_tok": 3,
        "norm_topk_prob": True,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "tie_word_embeddings": True,
    },
    # LayerNorm; attention beside experts, two of them shared and averaged; a dense layer in front; tied embeddings.
    "cohere2_moe": _COHERE,
    # As many key/value heads as heads, RMSNorm, biases, one expert per token, none shared, a first layer without rope.
    "cohere2_moe_mha": {
        **_COHERE,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
        "attention_bias": True,
        "num_experts_per_tok": 1,
        "num_shared_experts": 0,
        "mlp_layer_types": ["sparse", "sparse", "sparse"],
        "logit_scale": 0.3,
        "tie_word_embeddings": False,
    },
    # An indexer that chooses four keys; expert groups, a dense layer in front.
    "deepseek_v32": _DEEPSEEK_V32,
    # One that chooses one key by one head, biases, one expert per token, no groups, yarn.
    "deepseek_v32_yarn": {
        **_DEEPSEEK_V32,
        "index_topk": 1,
        "index_n_heads": 1,
        "attention_bias": True,
        "num_experts_per_tok": 1,
        "n_group": 1,
        "topk_group": 1,
        "max_position_embeddings": 4096,
        "rope_parameters": _YARN,
        "tie_word_embeddings": True,
    },
    # A layer in the middle that sees the keys which the one before it chose; no groups of experts.
    "glm_moe_dsa": _GLM_MOE_DSA,
    # An indexer in each layer, two keys of one head, one expert per token, expert groups, biases.
    "glm_moe_dsa_plain": {
        **_GLM_MOE_DSA,
        "indexer_types": ["full", "full", "full"],
        "index_topk": 2,
        "index_n_heads": 1,
        "attention_bias": True,
        "num_experts_per_tok": 1,
        "n_group": 4,
        "topk_group": 2,
        "first_k_dense_replace": 0,
        "tie_word_embeddings": True,
    },
    # Sinks, more heads of keys and another rope in the layer with a window; narrow values; a dense layer in front.
    "mimo_v2_flash": _MIMO,
    # As many key/value heads as heads in the window, biases, one expert per token, expert groups, tied embeddings.
    "mimo_v2_flash_mha": {
        **_MIMO,
        "num_key_value_heads": 2,
        "attention_bias": True,
        "attention_value_scale": None,
        "num_experts_per_tok": 1,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 2.5,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "mlp_layer_types": ["sparse", "sparse", "dense"],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.25},
        },
        "tie_word_embeddings": True,
    },
    # Sinks as factors, a rope of its own in each layer, none in the second; a shared expert.
    "granitemoe_swa": {
        **_GRANITE_SWA,
        "embedding_multiplier": 12.0,
        "attention_multiplier": 0.03,
        "residual_multiplier": 0.22,
        "logits_scaling": 0.3,
        "shared_intermediate_size": 56,
        "layer_rope_theta": [10000.0, 0, 300.0],
    },
    # As many key/value heads as heads, one expert per token, biases, one rope, every fourth layer without a window.
    "granitemoe_swa_mha": {
        **_GRANITE_SWA,
        "num_key_value_heads": 4,
        "num_experts_per_tok": 1,
        "attention_bias": True,
        "attention_multiplier": 0.25,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "tie_word_embeddings": True,
    },
    # LayerNorm, biases, sparsemixer's two experts, longrope.
    "phimoe": {
        **_PHI,
        "attention_bias": True,
        "router_jitter_noise": 0.3,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0 + 0.1 * i for i in range(8)],
            "long_factor": [4.0 + i for i in range(8)],
            "short_mscale": 1.1,
            "long_mscale": 1.2,
            # `generate` of transformers begins its cache anew behind so many tokens.
            "original_max_position_embeddings": 17,
        },
    },
    # As many key/value heads as heads, no biases, a window, tied embeddings.
    "phimoe_mha": {**_PHI, "num_key_value_heads": 4, "sliding_window": 5, "tie_word_embeddings": True},
    # Norms that gate themselves, gated attention, an indexer; expert groups, a dense layer in front.
    "axk2": {**_DEEPSEEK_V32, "model_type": "axk2", "gated_norm_rank": 6},
    # No groups of experts, one per token, one key of one head, biases.
    "axk2_plain": {
        **_DEEPSEEK_V32,
        "model_type": "axk2",
        "n_group": None,
        "topk_group": None,
        "num_experts_per_tok": 1,
        "index_topk": 1,
        "index_n_heads": 1,
        "attention_bias": True,
        "tie_word_embeddings": True,
    },
    # Chunks of five tokens, norms behind the rope, places that scale queries.
    "llama4": _LLAMA4,
    # As many key/value heads as heads, no norms, biases, chunks in layers without a rope too, tied embeddings.
    "llama4_mha": {
        **_LLAMA4,
        "num_key_value_heads": 4,
        "use_qk_norm": False,
        "attn_temperature_tuning": False,
        "attention_bias": True,
        "moe_layers": None,
        "interleave_moe_layer_step": 2,
        "layer_types": ["full_attention", "chunked_attention", "chunked_attention"],
        "tie_word_embeddings": True,
    },
    # A temperature by position, from the sixth token on.
    "mistral4": _MISTRAL4,
    # No query compression, one group, halves that turn, a scale of weights, all layers sparse, tied embeddings.
    "mistral4_plain": {
        **_MISTRAL4,
        "q_lora_rank": None,
        "first_k_dense_replace": 0,
        "n_group": 1,
        "topk_group": 1,
        "n_shared_experts": 1,
        "rope_interleave": False,
        "norm_topk_prob": False,
        "routed_scaling_factor": 2.5,
        "attention_bias": True,
        "tie_word_embeddings": True,
    },
    # Gated short convolutions, a dense one in front, a bias that chooses experts.
    "lfm2_moe": _LFM2,
    # Four taps, biases, as many key/value heads as heads, one expert per token without a bias, weights that are scaled
    # and not normalised, attention in front.
    "lfm2_moe_odd": {
        **_LFM2,
        "num_key_value_heads": 4,
        "num_experts_per_tok": 1,
        "conv_bias": True,
        "conv_L_cache": 4,
        "use_expert_bias": False,
        "norm_topk_prob": False,
        "routed_scaling_factor": 2.5,
        "layer_types": ["full_attention", "conv", "full_attention"],
        "tie_word_embeddings": False,
    },
    # Heads, rope and window by layer, a gate for each head, capped logits of a router, a scaled sum of experts.
    "laguna": _LAGUNA,
    # Heads that turn whole, a gate for each number, YaRN, one key head, an odd width, biases, tied embeddings.
    "laguna_odd": {
        **_LAGUNA,
        "num_attention_heads": 3,
        "num_attention_heads_per_layer": None,
        "num_key_value_heads": 1,
        "num_experts_per_tok": 1,
        "shared_expert_intermediate_size": 37,
        "gating": "per-element",
        "moe_routed_scaling_factor": 1.0,
        "moe_router_logit_softcapping": 0.0,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "mlp_layer_types": ["sparse", "dense", "sparse"],
        "rope_parameters": {
            "full_attention": {**_YARN, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
        "attention_bias": True,
        "tie_word_embeddings": True,
    },
    # Two attentions and MLPs a layer around experts, of which some hand on what they read.
    "longcat_flash": _LONGCAT,
    # No such experts, YaRN, one head, biases, latents as wide as the stream, tied embeddings.
    "longcat_flash_odd": {
        **_LONGCAT,
        "num_attention_heads": 1,
        "zero_expert_num": 0,
        "moe_topk": 2,
        "kv_lora_rank": 64,
        "attention_bias": True,
        "rope_parameters": _YARN,
        "tie_word_embeddings": True,
    },
    # One projection for all heads, held between limits; five experts, whose sum tells its order.
    "dbrx": _DBRX,
    # As many key/value heads as heads, of odd halves; weights that stay as they are, one expert per token.
    "dbrx_mha": {
        **_DBRX,
        "d_model": 72,
        "attn_config": {"kv_n_heads": 4, "clip_qkv": 8, "rope_theta": 10000.0},
        "ffn_config": {
            "ffn_hidden_size": 40,
            "moe_num_experts": 8,
            "moe_top_k": 1,
            "moe_normalize_expert_weights": None,
        },
    },
    # As Qwen3-Next, with all layers sparse.
    "qwen3_5_moe": _QWEN3_5_MOE,
    # As many heads of keys as of values, of odd widths, as many key/value heads as heads, biases, tied embeddings, one
    # expert per token.
    "qwen3_5_moe_mha": {
        **_QWEN3_5_MOE,
        "num_key_value_heads": 4,
        "linear_num_key_heads": 3,
        "linear_num_value_heads": 3,
        "linear_value_head_dim": 19,
        "attention_bias": True,
        "num_experts_per_tok": 1,
        "tie_word_embeddings": True,
    },
    # Behind a vision tower, of which two layers give something to the first two here; the second is dense.
    "qwen3_vl_moe": _QWEN3_VL_MOE,
    # Text alone of a model with a vision tower; sections of rotated pairs in runs.
    "glm4v_moe": _GLM4V,
    # Text alone of one whose text model is a DeepSeek-V3.
    "kimi_k25": _KIMI_K25,
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
    "qwen3_vl_moe",
    "glm4v_moe",
    "kimi_k25",
    "laguna",
    "laguna_odd",
    "longcat_flash",
    "longcat_flash_odd",
    "lfm2_moe",
    "lfm2_moe_odd",
    "llama4",
    "llama4_mha",
    "mistral4",
    "axk2",
    "axk2_plain",
    "granitemoe_swa",
    "granitemoe_swa_mha",
    "mimo_v2_flash",
    "mimo_v2_flash_mha",
    "glm_moe_dsa",
    "deepseek_v32",
    "deepseek_v32_yarn",
    "cohere2_moe",
    "cohere2_moe_mha",
    "kolibri1",
    "kolibri1_mha",
    "mellum",
    "mellum_mha",
    "axk1",
    "flint",
    "flint_mha",
    "granitemoehybrid",
    "granitemoehybrid_odd",
    "jamba",
    "jamba_odd",
    "kimi_linear",
    "kimi_linear_odd",
    "bailing_hybrid",
    "bailing_hybrid_odd",
    "exaone_moe",
    "exaone_moe_mha",
    "afmoe",
    "afmoe_mha",
    "dots1",
    "glm4_moe_lite",
    "hy_v3",
    "qwen3_5_moe",
    "qwen3_5_moe_mha",
    "ernie4_5_moe",
    "ernie4_5_moe_mha",
    "deepseek_v2",
    "deepseek_v2_yarn",
    "qwen3_moe_mha",
    "qwen3_sliding",
    "qwen2_sliding",
    "qwen2_moe",
    "glm4_moe",
    "glm4_moe_plain",
    "gpt_oss",
    "gpt_oss_mha",
    "qwen3_next",
    "qwen3_next_mha",
    "deepseek_v3",
    "deepseek_v3_yarn",
}
"""Whose layers differ: dense or sparse, with a window or without."""


_OF_FOUR = {"nemotron_h", "nemotron_h_latent"}
"""Whose layers are a block each."""

_OF_THREE = {"minimax", "minimax_mha"}
"""Whose last layer would decay by next to nothing."""


def fields_of(name: str, layers: int) -> dict[str, Any]:
    """With so many layers, and no fewer than it has kinds of them."""
    count = 4 if name in _OF_FOUR else max(layers, 3 if name in _OF_THREE else 2 if name in _OF_TWO_KINDS else 1)
    if "text_config" in SMALL[name]:
        return {**SMALL[name], "text_config": {**SMALL[name]["text_config"], "num_hidden_layers": count}}
    fields = {**SMALL[name], "num_hidden_layers": count}
    listed = {"layer_types", "mlp_layer_types", "indexer_types", "layer_rope_theta", "no_rope_layers"}
    listed |= {"num_attention_heads_per_layer"} if SMALL[name].get("num_attention_heads_per_layer") else set()
    return {key: value[:count] if key in listed else value for key, value in fields.items()}
