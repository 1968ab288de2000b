"""Checkpoints in a layout of their own, under the names and in the fields that `tests/plain_forward.py` reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Weights = dict[str, npt.NDArray[np.float64]]
Fields = dict[str, Any]


def dbrx(fields: Fields, weights: Weights) -> tuple[Fields, Weights]:
    """DBRX: q, k and v from one matrix, and each expert's from matrices of all; rope by the base beside attn_config."""
    attention, ffn = fields["attn_config"], fields["ffn_config"]
    heads, groups, experts = fields["n_heads"], attention["kv_n_heads"], ffn["moe_num_experts"]
    width, hidden = fields["d_model"] // heads, fields["d_model"]
    fields_read: Fields = {
        "model_type": "dbrx",
        "num_hidden_layers": fields["n_layers"],
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "num_experts_per_tok": ffn["moe_top_k"],
        "clip_qkv": attention["clip_qkv"],
        "norm_topk_prob": ffn["moe_normalize_expert_weights"] is not None,
        "layer_norm_eps": 1e-5,
        "rope_parameters": fields["rope_parameters"],
    }
    renamed: Weights = {
        "model.embed_tokens.weight": weights["transformer.wte.weight"],
        "model.norm.weight": weights["transformer.norm_f.weight"],
        "lm_head.weight": weights["lm_head.weight"],
    }
    for layer in range(fields["n_layers"]):
        theirs, ours = f"transformer.blocks.{layer}.", f"model.layers.{layer}."
        renamed[ours + "input_layernorm.weight"] = weights[theirs + "norm_attn_norm.norm_1.weight"]
        renamed[ours + "post_attention_layernorm.weight"] = weights[theirs + "norm_attn_norm.norm_2.weight"]
        renamed[ours + "self_attn.o_proj.weight"] = weights[theirs + "norm_attn_norm.attn.out_proj.weight"]
        renamed[ours + "mlp.gate.weight"] = weights[theirs + "ffn.router.layer.weight"]
        qkv = np.split(weights[theirs + "norm_attn_norm.attn.Wqkv.weight"], [hidden, hidden + groups * width])
        renamed |= {f"{ours}self_attn.{letter}_proj.weight": part for letter, part in zip("qkv", qkv, strict=True)}
        for ports, name in (("gate", "w1"), ("up", "v1"), ("down", "w2")):
            stack = weights[f"{theirs}ffn.experts.mlp.{name}"].reshape(experts, -1, hidden)
            for expert, matrix in enumerate(stack):
                renamed[f"{ours}mlp.experts.{expert}.{ports}_proj.weight"] = matrix.T if ports == "down" else matrix
    return fields_read, renamed


_OF_LFM2 = {
    "model.embedding_norm": "model.norm",
    "operator_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "self_attn.out_proj": "self_attn.o_proj",
    "q_layernorm": "q_norm",
    "k_layernorm": "k_norm",
    "feed_forward": "mlp",
}
"""Parts of the names of LFM2's tensors -> what the plain forward calls them."""


def lfm2_moe(fields: Fields, weights: Weights) -> tuple[Fields, Weights]:
    """LFM2, whose router has a bias of zeros where it has none."""
    renamed = {}
    for name, tensor in weights.items():
        for theirs, ours in _OF_LFM2.items():
            name = name.replace(theirs, ours)  # noqa: PLW2901
        renamed[name] = tensor
    for gate in [name for name in renamed if name.endswith("mlp.gate.weight")]:
        renamed.setdefault(gate.removesuffix("gate.weight") + "expert_bias", np.zeros(fields["num_experts"]))
    return fields | {"rms_norm_eps": fields["norm_eps"]}, renamed


def laguna(fields: Fields, weights: Weights) -> tuple[Fields, Weights]:
    """Laguna, whose scale of the experts' sum is that of their weights."""
    names = {"mlp.experts.e_score": "mlp.gate.e_score", "mlp.shared_expert.": "mlp.shared_experts."}
    renamed = {}
    for name, tensor in weights.items():
        theirs = next((part for part in names if part in name), None)
        renamed[name if theirs is None else name.replace(theirs, names[theirs])] = tensor
    return fields | {"routed_scaling_factor": fields["moe_routed_scaling_factor"]}, renamed


def longcat_flash(fields: Fields, weights: Weights) -> tuple[Fields, Weights]:
    """LongCat, each of whose layers is two; what multiplies queries and latents is taken into the norms before."""
    factors = {rank: (fields["hidden_size"] / fields[f"{rank}_lora_rank"]) ** 0.5 for rank in ("q", "kv")}
    renamed = {}
    for name, tensor in weights.items():
        if not name.startswith("model.layers."):
            renamed[name] = tensor
            continue
        _, _, layer, module, second, *inner = name.split(".")
        if module == "mlp":
            module, second, inner = "moe", "0", [second, *inner]
        rest = ({"mlps": "mlp"}.get(module, module), *inner)
        factor = next((factors[rank] for rank in factors if f".{rank}_a_layernorm." in name), 1.0)
        renamed[".".join(("model.layers", str(2 * int(layer) + int(second)), *rest))] = tensor * factor
    fields_read = {"num_hidden_layers": 2 * fields["num_layers"], "num_experts_per_tok": fields["moe_topk"]}
    return fields | fields_read, renamed


def qwen3_vl_moe(fields: Fields, weights: Weights) -> tuple[Fields, Weights]:
    """Qwen3-VL-MoE on text, where its three positions are one: the text model beside the vision tower, with experts in
    stacks that have outputs first.
    """
    fields_read = fields["text_config"] | {"model_type": "qwen3_moe", "norm_topk_prob": True}
    renamed: Weights = {}
    for name, tensor in weights.items():
        plain = name.replace("model.language_model.", "model.")
        if not plain.endswith(("experts.gate_up_proj", "experts.down_proj")):
            renamed[plain] = tensor
            continue
        at, _, stack = plain.rpartition(".")
        for expert, matrix in enumerate(tensor):
            parts = zip(("gate", "up"), np.split(matrix, 2), strict=True) if "gate" in stack else [("down", matrix)]
            renamed |= {f"{at}.{expert}.{part}_proj.weight": rows for part, rows in parts}
    return fields_read, renamed


def glm4v_moe(fields: Fields, weights: Weights) -> tuple[Fields, Weights]:
    """GLM-4.5V on text, where its three positions are one."""
    renamed = {name.replace("model.language_model.", "model."): tensor for name, tensor in weights.items()}
    return fields["text_config"] | {"model_type": "glm4_moe"}, renamed


def kimi_k25(fields: Fields, weights: Weights) -> tuple[Fields, Weights]:
    """The DeepSeek-V3 in a Kimi K2.5, as transformers 5.23.0 saves it."""
    inside = {name: name.removeprefix("language_model.").replace("model.blocks.", "model.layers.") for name in weights}
    return fields["text_config"], {inside[name]: tensor for name, tensor in weights.items()}


def bailing_hybrid(fields: Fields, weights: Weights) -> tuple[Fields, Weights]:
    """Ling 3.0, by the names of Kimi Linear and DeepSeek-V3."""
    words = {
        ".word_embeddings.": ".embed_tokens.",
        ".attention.": ".self_attn.",
        ".dense.": ".o_proj.",
        ".expert_bias": ".e_score_correction_bias",
    }
    renamed = {}
    for name, tensor in weights.items():
        plain = name
        for word, another in words.items():
            plain = plain.replace(word, another)
        renamed[plain] = tensor
    return fields | {"q_lora_rank": None}, renamed


LAYOUTS = {
    "glm4v_moe": glm4v_moe,
    "kimi_k25": kimi_k25,
    "bailing_hybrid": bailing_hybrid,
    "qwen3_vl_moe": qwen3_vl_moe,
    "dbrx": dbrx,
    "lfm2_moe": lfm2_moe,
    "laguna": laguna,
    "longcat_flash": longcat_flash,
}
"""model_type -> what makes its fields and tensors those of the plain forward."""
