"""Fields of a config.json that lie deeper than others, or say in words or letters what transformers reads as lists and
numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_BLOCKS = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}
"""Letter of a Nemotron-H's `hybrid_override_pattern` -> the block of a layer."""

TEXT_OF = {
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl_moe": "qwen3_vl_moe",
    "glm4v_moe": "glm4v_moe",
    "kimi_k25": "kimi_k25",
}
"""model_type of a model with a vision tower -> that of the graph of what comes behind it, whose fields are in
`text_config`.
"""
_TOKENS = {
    "qwen3_5_moe": (248056, 248057),
    "qwen3_vl_moe": (151655, 151656),
    "glm4v_moe": (151363, 151364),
    "kimi_k25": (163605, 163840),
}
"""model_type -> the tokens of images and of videos of a config.json that names none."""
_TIED = ("kimi_k25",)
"""model_type of models that tie their embeddings where config.json is silent."""
_DEEPSTACK = {"qwen3_vl_moe": [8, 16, 24]}
"""model_type -> the deepstack_visual_indexes of a vision_config that has none, where there may be some."""


def of_text(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a text model that stands behind a vision tower, with those that are said of both, and of the tower
    how the text model takes images; `deepstack_layers` is behind how many of its layers the tower adds something.
    """
    kind, text = fields["model_type"], fields.get("text_config")
    if kind not in TEXT_OF or not isinstance(text, dict):
        return fields
    outer = {key: value for key, value in fields.items() if key not in {"text_config", "vision_config"}}
    tower = fields["vision_config"] if isinstance(fields.get("vision_config"), dict) else {}
    image, video = _TOKENS[kind]
    indexes = tower.get("deepstack_visual_indexes", _DEEPSTACK[kind]) if kind in _DEEPSTACK else []
    inner = {
        "model_type": TEXT_OF[kind],
        "spatial_merge_size": tower.get("spatial_merge_size", _square(tower.get("merge_kernel_size"))),
        "deepstack_visual_indexes": indexes,
        "deepstack_layers": len(indexes) if isinstance(indexes, list) else 0,
    }
    # transformers has no class of this text model alone, so that what ties the embeddings is said outside.
    tied = {"tie_word_embeddings": fields.get("tie_word_embeddings", kind in _TIED)} if TEXT_OF[kind] == kind else {}
    return {"image_token_id": image, "video_token_id": video, **outer, **text, **inner, **tied}


def _square(sides: Any) -> Any:
    """How many patches of either side are one token (Kimi K2.5's tower says it of each); 2 where nothing is said."""
    is_square = isinstance(sides, list) and sides[:1] * 2 == sides
    return sides[0] if is_square else 2 if sides is None else sides


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
