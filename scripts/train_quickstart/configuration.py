"""What is trained, and how: the model's config.json and the constants of the run."""

from __future__ import annotations

from typing import Any

SEED = 20261120
SEQ_LEN = 256
BATCH = 12
PEAK_LR = 3e-3
WARMUP = 100
WEIGHT_DECAY = 0.1
AUX_COEF = 0.01

# Field names of the hub's Qwen3-MoE configs (transformers 4.x). transformers 5 would save num_local_experts,
# rope_parameters and dtype instead, which is not what a reader of hub checkpoints meets.
HUB_CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "decoder_sparse_step": 1,
    "eos_token_id": None,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 96,
    "initializer_range": 0.02,
    "intermediate_size": 192,
    "max_position_embeddings": 512,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 48,
    "norm_topk_prob": True,
    "num_attention_heads": 8,
    "num_experts": 24,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 4,
    "num_key_value_heads": 8,
    "output_router_logits": False,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "router_aux_loss_coef": AUX_COEF,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 256,
}
