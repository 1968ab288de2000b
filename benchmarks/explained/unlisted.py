"""Faults that no file of `graphs/faults` describes: the node is to be named, and no cause."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.explained.faults import ALL, GROUPED, PLAIN, Patch
from benchmarks.explained.program import Change, Program, after, with_forward


def half_synced(program: Program) -> Change:
    """Half of a projection is of another step."""
    layer, at = program.layer()
    weight = layer.self_attn.o_proj.weight.data
    weight[: len(weight) // 2] *= 0.875
    return Change(node=f"{at}.attention.o_proj")


def gelu(program: Program) -> Change:
    """Experts have another activation."""
    layer, at = program.layer()
    layer.mlp.experts.act_fn = nn.GELU()
    return Change(node=f"{at}.moe.combine")


def scaled_stream(program: Program) -> Change:
    """What leaves a layer is scaled."""
    layer, at = program.layer()
    after(layer, lambda hidden: hidden * 1.0625)
    return Change(node=f"{at}.moe.residual")


def clipped_sum(program: Program) -> Change:
    """The routed sum is clipped."""
    layer, at = program.layer()
    after(layer.mlp.experts, lambda hidden: hidden.clamp(-0.25, 0.25))
    return Change(node=f"{at}.moe.combine")


def quantised(program: Program) -> Change:
    """A projection went through fp8."""
    layer, at = program.layer()
    weight = layer.self_attn.v_proj.weight.data
    weight.copy_(weight.to(torch.float8_e4m3fn).to(weight.dtype))
    return Change(node=f"{at}.attention.v_proj")


def centred_norm(program: Program) -> Change:
    """A norm takes the mean off."""
    layer, at = program.layer()

    def forward(self: Any, hidden: Tensor) -> Tensor:
        wide = hidden.float() - hidden.float().mean(-1, keepdim=True)
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        weight: Tensor = self.weight
        return weight * (wide * scale).to(hidden.dtype)

    with_forward(layer.post_attention_layernorm, forward)
    return Change(node=f"{at}.moe.norm")


def last_slot_dropped(program: Program) -> Change:
    """Each token's last expert counts for nothing."""
    layer, at = program.layer()

    def dropped(out: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        logits, weights, ids = out
        keep = torch.arange(weights.shape[-1]) < weights.shape[-1] - 1
        return logits, weights * keep, ids

    after(layer.mlp.gate, dropped)
    return Change(node=f"{at}.moe.router")


def weights_of_other_slots(program: Program) -> Change:
    """Routing weights stand in reverse."""
    layer, at = program.layer()
    after(layer.mlp.gate, lambda out: (out[0], out[1].flip(-1), out[2]))
    return Change(node=f"{at}.moe.router")


def next_expert(program: Program) -> Change:
    """Every token goes to the expert behind the one chosen."""
    layer, at = program.layer()
    experts = layer.mlp.experts.num_experts
    after(layer.mlp.gate, lambda out: (out[0], out[1], (out[2] + 1) % experts))
    return Change(node=f"{at}.moe.router")


def rolled_values(program: Program) -> Change:
    """Values are moved by one channel."""
    layer, at = program.layer()
    after(layer.self_attn.v_proj, lambda values: values.roll(1, -1))
    return Change(node=f"{at}.attention.v_proj")


def keys_of_the_token_before(program: Program) -> Change:
    """Keys are the token before's."""
    layer, at = program.layer()
    after(layer.self_attn.k_proj, lambda keys: keys.roll(1, 1))
    return Change(node=f"{at}.attention.k_proj")


def capped_logits(program: Program) -> Change:
    """Logits are capped softly."""
    after(program.model.lm_head, lambda logits: 2 * torch.tanh(logits / 2))
    return Change(node="lm_head")


def forgotten_token(program: Program) -> Change:
    """One token can never be said."""
    program.model.lm_head.weight.data[program.draw.randrange(300)] = 0
    return Change(node="lm_head")


UNLISTED: Mapping[Patch, tuple[str, ...]] = {
    half_synced: ALL,
    gelu: PLAIN,
    scaled_stream: ALL,
    clipped_sum: ALL,
    quantised: GROUPED,
    centred_norm: ("qwen3_moe", "mixtral", "qwen2_moe", "olmoe", "glm4_moe"),
    last_slot_dropped: PLAIN,
    weights_of_other_slots: PLAIN,
    next_expert: PLAIN,
    rolled_values: GROUPED,
    keys_of_the_token_before: GROUPED,
    capped_logits: ALL,
    forgotten_token: ALL,
}
"""Each with the models that it can happen to."""
