"""Fields of a config.json that lie deeper than others, or say in words or letters what transformers reads as lists and
numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_BLOCKS = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}
"""Letter of a Nemotron-H's `hybrid_override_pattern` -> the block of a layer."""

TEXT_OF = {"qwen3_5_moe": "qwen3_5_moe_text"}
"""model_type of a model with a vision tower -> that of its text model, whose fields are in `text_config`."""


def of_text(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a text model that stands beside a vision tower, with those that are said of both."""
    text_type, text = TEXT_OF.get(fields["model_type"]), fields.get("text_config")
    if text_type is None or not isinstance(text, dict):
        return fields
    outer = {key: value for key, value in fields.items() if key not in {"text_config", "vision_config"}}
    return {**outer, **text, "model_type": text_type}


WITH_IMAGES = ("qwen3_vl_moe",)
"""model_type of a model whose graph takes images, and whose text model's fields are in `text_config`."""
_DEEPSTACK = {"qwen3_vl_moe": [8, 16, 24]}
"""model_type -> the deepstack_visual_indexes of a vision_config that has none."""


def of_images(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a model that takes images: those of its text model, of both, and of the tower how the text model
    takes images; `deepstack_layers` is behind how many of its layers it adds some. Whether embeddings are tied is said
    outside, as transformers reads it.
    """
    text, tower = fields.get("text_config"), fields.get("vision_config")
    if fields["model_type"] not in WITH_IMAGES or not isinstance(text, dict):
        return fields
    outer = {key: value for key, value in fields.items() if key not in {"text_config", "vision_config"}}
    tower = tower if isinstance(tower, dict) else {}
    indexes = tower.get("deepstack_visual_indexes", _DEEPSTACK[fields["model_type"]])
    inner = {
        "model_type": fields["model_type"],
        "tie_word_embeddings": fields.get("tie_word_embeddings", False),
        "spatial_merge_size": tower.get("spatial_merge_size", 2),
        "deepstack_visual_indexes": indexes,
        "deepstack_layers": len(indexes) if isinstance(indexes, list) else 0,
    }
    return {**outer, **text, **inner}


def of_linear_attention(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with those of Kimi Linear's `linear_attn_config` beside them, by the names that transformers gives
    them; it counts layers from 1.
    """
    inner = fields.get("linear_attn_config")
    if not isinstance(inner, dict):
        return fields
    words = {"head_dim": "linear_head_dim", "num_heads": "linear_num_heads"}
    words["short_conv_kernel_size"] = "linear_conv_kernel_dim"
    flat = {**fields, **{words[key]: value for key, value in inner.items() if key in words}}
    full, delta = inner.get("full_attn_layers"), inner.get("kda_layers")
    if fields.get("layer_types") is None and isinstance(full, list) and isinstance(delta, list):
        kinds = dict.fromkeys(full, "full_attention") | dict.fromkeys(delta, "linear_attention")
        flat["layer_types"] = [kinds.get(layer + 1) for layer in range(len(full) + len(delta))]
    return flat


def of_blocks(fields: dict[str, Any], aliases: Sequence[str]) -> dict[str, Any]:
    """The fields of a Nemotron-H with a list of its blocks, one a layer, which may stand as letters, and counts them
    whatever the file says of their number; the four of transformers where it is silent. aliases: of `layer_types`.
    """
    if fields["model_type"] != "nemotron_h":
        return fields
    key = next((key for key in ("layer_types", *aliases) if fields.get(key) is not None), "layer_types")
    blocks, letters = fields.get(key), fields.get("hybrid_override_pattern", "ME*-")
    if blocks is None and isinstance(letters, str):
        blocks = [_BLOCKS.get(letter, letter) for letter in letters]
    return {**fields, key: blocks, **({"num_hidden_layers": len(blocks)} if isinstance(blocks, list) else {})}


def of_rank(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a Jamba with a number for the rank of dt, a sixteenth of the width where the file has none."""
    hidden = fields.get("hidden_size")
    if fields["model_type"] != "jamba" or fields.get("mamba_dt_rank", "auto") != "auto" or type(hidden) is not int:
        return fields
    return {**fields, "mamba_dt_rank": -(-hidden // 16)}


_OF_HALVES = {
    "attn_config": ("kv_n_heads", "clip_qkv"),
    "ffn_config": ("ffn_hidden_size", "moe_num_experts", "moe_top_k", "moe_normalize_expert_weights"),
}
"""An object in DBRX's config.json -> what of it stands beside it in that of other models."""


def of_halves(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a DBRX with those beside them that stand in its `attn_config` and `ffn_config`."""
    if fields["model_type"] != "dbrx":
        return fields
    flat = {**fields, "hidden_act": "silu"}
    for half, names in _OF_HALVES.items():
        inner = fields.get(half)
        if isinstance(inner, dict):
            flat |= {name: inner[name] for name in names if name in inner}
            activation = inner.get("ffn_act_fn")
            flat |= {"hidden_act": activation.get("name", "silu") if isinstance(activation, dict) else "silu"}
    return flat
