"""A small Qwen3-MoE and a small DeepSeek-V3 in the hub's layout, saved by transformers.

Thirty-two heads and experts divide by every number of ranks; of Qwen3's four key-value heads several ranks hold one.
A rank of 32 holds four columns of an expert, 8 bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tests.checkpoint_factory import FILE, make_random

EXPERTS: Final = 32
EXPERT_WIDTH: Final = 128
_COMMON: Final[dict[str, Any]] = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": EXPERT_WIDTH,
    "intermediate_size": 256,
    "vocab_size": 512,
    "norm_topk_prob": True,
}
_FIELDS: Final[dict[str, dict[str, Any]]] = {
    "qwen3_moe": {**_COMMON, "num_key_value_heads": 4, "head_dim": 16, "num_experts": EXPERTS},
    "deepseek_v3": {
        **_COMMON,
        "num_key_value_heads": 32,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 4,
        "topk_group": 2,
        "q_lora_rank": 48,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "v_head_dim": 16,
    },
}


def checkpoint(model: str, folder: Path) -> Path:
    """The checkpoint of that model type below a folder, made where it is not there."""
    path = folder / model
    return path if (path / FILE).exists() else make_random({"model_type": model, **_FIELDS[model]}, path)


def unreadable(whole: Path) -> Path:
    """The same checkpoint with a file of weights that nobody can read, beside it."""
    spoilt = whole.with_name(f"{whole.name}-unreadable")
    spoilt.mkdir(exist_ok=True)
    config = json.loads((whole / "config.json").read_text("utf-8"))
    (spoilt / "config.json").write_text(json.dumps(config), "utf-8")
    (spoilt / FILE).write_bytes(b"no weights")
    return spoilt
