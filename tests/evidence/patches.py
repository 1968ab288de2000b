"""Changes of transformers' Qwen3-MoE, each with the nodes at which it gives other bits: faults, choices, combinations.

A patch takes the program and a generator of its own, by which it draws layers and sizes.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Patch = Callable[[Any, Random], set[str]]
"""Changes a program; the names of the nodes that are to be found."""


def _layer(program: Any, draw: Random) -> tuple[Any, str]:
    number = draw.randrange(len(program.model.layers))
    return program.model.layers[number], f"layers[{number}]"


def _with(module: nn.Module, forward: Callable[..., Any]) -> None:
    """Another forward of one module, which is handed what the module gives itself."""
    inner = module.forward
    changed = types.MethodType(lambda _, *args, **kwargs: forward(inner(*args, **kwargs)), module)
    module.forward = changed


def norm_eps(program: Any, draw: Random) -> set[str]:
    layer, at = _layer(program, draw)
    layer.input_layernorm.variance_epsilon = draw.choice([1e-3, 1e-2])
    return {f"{at}.attention.norm"}


def norm_weight(program: Any, draw: Random) -> set[str]:
    layer, at = _layer(program, draw)
    layer.post_attention_layernorm.weight.data.mul_(draw.choice([1.5, 0.5]))
    return {f"{at}.moe.norm"}


def final_norm_in_fp32(program: Any, draw: Random) -> set[str]:
    norm = program.model.norm

    def fused(self: Any, hidden: torch.Tensor) -> torch.Tensor:
        wide = hidden.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (wide * scale * self.weight.float()).to(hidden.dtype)

    norm.forward = types.MethodType(fused, norm)
    return {"norm"}


def q_norm_missing(program: Any, draw: Random) -> set[str]:
    layer, at = _layer(program, draw)
    layer.self_attn.q_norm.forward = types.MethodType(lambda _, hidden: hidden, layer.self_attn.q_norm)
    return {f"{at}.attention.q_norm"}


def k_norm_twice(program: Any, draw: Random) -> set[str]:
    layer, at = _layer(program, draw)
    norm = layer.self_attn.k_norm
    inner = norm.forward
    norm.forward = types.MethodType(lambda _, hidden: inner(inner(hidden)), norm)
    return {f"{at}.attention.k_norm"}


def stale_projection(program: Any, draw: Random) -> set[str]:
    layer, at = _layer(program, draw)
    name = draw.choice(["q_proj", "k_proj", "v_proj", "o_proj"])
    weight = getattr(layer.self_attn, name).weight.data
    weight[: len(weight) // 2] *= 0.75
    return {f"{at}.attention.{name}"}


def exchanged_gate_and_up(program: Any, draw: Random) -> set[str]:
    layer, at = _layer(program, draw)
    weight = layer.mlp.experts.gate_up_proj.data
    weight.copy_(torch.cat(weight.chunk(2, dim=1)[::-1], dim=1))
    return {f"{at}.moe.combine"}


def permuted_experts(program: Any, draw: Random) -> set[str]:
    layer, at = _layer(program, draw)
    weight = layer.mlp.experts.down_proj.data
    weight.copy_(weight.roll(draw.randrange(1, len(weight)), dims=0))
    return {f"{at}.moe.combine"}


def combine_in_fp32(program: Any, draw: Random) -> set[str]:
    """One choice: transformers' own grouped experts, which add in fp32."""
    program.set_experts_implementation("grouped_mm")
    return {f"layers[{number}].moe.combine" for number in range(len(program.model.layers))}


def not_renormalised(program: Any, draw: Random) -> set[str]:
    layer, at = _layer(program, draw)
    layer.mlp.gate.norm_topk_prob = False
    return {f"{at}.moe.router"}


def one_expert_fewer(program: Any, draw: Random) -> set[str]:
    """A token's last expert counts for nothing: a capacity that is too small."""
    layer, at = _layer(program, draw)

    def dropped(out: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        logits, weights, ids = out
        weights = weights.clone()
        weights[:, -1] = 0
        return logits, weights, ids

    _with(layer.mlp.gate, dropped)
    return {f"{at}.moe.router"}


def gate_in_fp32(program: Any, draw: Random) -> set[str]:
    """Logits of the router in fp32, and all that follows of them."""
    layer, at = _layer(program, draw)
    gate = layer.mlp.gate

    def wide(self: Any, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = hidden.reshape(-1, self.hidden_dim)
        logits = functional.linear(hidden.float(), self.weight.float())
        weights, ids = torch.topk(functional.softmax(logits, dim=-1), self.top_k, dim=-1)
        return logits, (weights / weights.sum(-1, keepdim=True)).to(hidden.dtype), ids

    gate.forward = types.MethodType(wide, gate)
    return {f"{at}.moe.gate"}


def attention_scale(program: Any, draw: Random) -> set[str]:
    layer, at = _layer(program, draw)
    layer.self_attn.scaling *= draw.choice([1.25, 0.5])
    return {f"{at}.attention.attend"}


def window(program: Any, draw: Random) -> set[str]:
    """A layer sees no token that is more than three away."""
    layer, at = _layer(program, draw)
    inner = layer.self_attn.forward

    def masked(_: Any, hidden_states: torch.Tensor, *args: Any, attention_mask: torch.Tensor, **kwargs: Any) -> Any:
        length = hidden_states.shape[1]
        far = torch.ones(length, length, dtype=torch.bool).tril(-4)
        mask = attention_mask.masked_fill(far, torch.finfo(attention_mask.dtype).min)
        return inner(hidden_states, *args, attention_mask=mask, **kwargs)

    layer.self_attn.forward = types.MethodType(masked, layer.self_attn)
    return {f"{at}.attention.attend"}


def sdpa(program: Any, draw: Random) -> set[str]:
    """One choice: another form of attention."""
    program.set_attn_implementation("sdpa")
    return {f"layers[{number}].attention.attend" for number in range(len(program.model.layers))}


def rope_base(program: Any, draw: Random) -> set[str]:
    frequencies = program.model.rotary_emb.inv_freq
    steps = torch.arange(len(frequencies)) / len(frequencies)
    program.model.rotary_emb.inv_freq = 1.0 / draw.choice([5e3, 1e6]) ** steps
    return {"rotary"}


def turned_by_one(program: Any, draw: Random) -> set[str]:
    """Positions that count from one."""
    inner = program.model.rotary_emb.forward
    later = types.MethodType(lambda _, hidden, position_ids: inner(hidden, position_ids + 1), program.model.rotary_emb)
    program.model.rotary_emb.forward = later
    return {"rotary"}


def temperature_in_the_head(program: Any, draw: Random) -> set[str]:
    heat = draw.choice([0.7, 1.3])
    _with(program.lm_head, lambda logits: logits / heat)
    return {"lm_head"}


def head_in_fp32(program: Any, draw: Random) -> set[str]:
    head = program.lm_head
    head.forward = types.MethodType(lambda self, x: functional.linear(x.float(), self.weight.float()), head)
    return {"lm_head"}


def scaled_embedding(program: Any, draw: Random) -> set[str]:
    _with(program.model.embed_tokens, lambda hidden: hidden * 8)
    return {"embed"}


def residual_of_the_norm(program: Any, draw: Random) -> set[str]:
    """What a layer adds to is its own normed input."""
    layer, at = _layer(program, draw)
    _with(layer, lambda hidden: hidden * 1.0625)
    return {f"{at}.moe.residual"}


def clipped_block(program: Any, draw: Random) -> set[str]:
    layer, at = _layer(program, draw)
    _with(layer.mlp, lambda hidden: hidden.clamp(-0.5, 0.5))
    return {f"{at}.moe.reduce"}


def two_faults(program: Any, draw: Random) -> set[str]:
    """Of one layer each, the later hidden behind what the earlier carries."""
    return norm_eps(program, draw) | permuted_experts(program, draw)


def fault_and_choices(program: Any, draw: Random) -> set[str]:
    return sdpa(program, draw) | combine_in_fp32(program, draw) | q_norm_missing(program, draw)


def choices(program: Any, draw: Random) -> set[str]:
    return sdpa(program, draw) | combine_in_fp32(program, draw) | final_norm_in_fp32(program, draw)


PATCHES: Mapping[str, Patch] = {
    patch.__name__: patch
    for patch in (
        norm_eps,
        norm_weight,
        final_norm_in_fp32,
        q_norm_missing,
        k_norm_twice,
        stale_projection,
        exchanged_gate_and_up,
        permuted_experts,
        combine_in_fp32,
        not_renormalised,
        one_expert_fewer,
        gate_in_fp32,
        attention_scale,
        window,
        sdpa,
        rope_base,
        turned_by_one,
        temperature_in_the_head,
        head_in_fp32,
        scaled_embedding,
        residual_of_the_norm,
        clipped_block,
        two_faults,
        fault_and_choices,
        choices,
    )
}
