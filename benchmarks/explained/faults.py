"""Faults of `graphs/faults`, as they would happen in a program of transformers; each says what it changes.

Those of its weights are in `loaded`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from benchmarks.explained import loaded
from benchmarks.explained.attend import attend_by, attention, own_config
from benchmarks.explained.loaded import fault_at
from benchmarks.explained.program import Change, Program, after, called_with, gives, with_forward

Patch = Callable[[Program], Change]
SHARED = ("glm4_moe", "deepseek_v3")
"""Models of which each token goes through an expert of its own that all share."""
PLAIN = ("qwen3_moe", "mixtral", "qwen2_moe", "olmoe", "glm4_moe", "deepseek_v3")
"""Models whose experts are stacks of gate beside up, without biases."""
ALL = (*PLAIN, "gpt_oss")
GROUPED = ("qwen3_moe", "mixtral", "qwen2_moe", "olmoe", "glm4_moe", "gpt_oss")
"""Models with queries, keys and values by heads."""


def other_eps(program: Program) -> Change:
    """A norm has another eps."""
    layer, at = program.layer()
    layer.input_layernorm.variance_epsilon = program.draw.choice([3e-3, 0.02, 7e-2])
    return Change(node=f"{at}.attention.norm", words=(("eps=",), ("fault=norm-eps",)))


def norm_left_out(program: Program) -> Change:
    """A norm is left out."""
    layer, at = program.layer()
    with_forward(layer.input_layernorm, lambda _, hidden: hidden)
    return fault_at(f"{at}.attention.norm", "norm-missing")


def norm_twice(program: Program) -> Change:
    """A norm is applied twice."""
    layer, at = program.layer()
    inner = layer.post_attention_layernorm.forward
    with_forward(layer.post_attention_layernorm, lambda _, hidden: inner(inner(hidden)))
    return fault_at(f"{at}.moe.norm", "norm-twice")


def key_norm_left_out(program: Program) -> Change:
    """Keys are not normalised."""
    layer, at = program.layer()
    with_forward(layer.self_attn.k_norm, lambda _, hidden: hidden)
    return fault_at(f"{at}.attention.k_norm", "qk-norm-missing")


def block_not_added(program: Program) -> Change:
    """A block's result is not added to the stream."""
    layer, at = program.layer()
    stream = called_with(layer.post_attention_layernorm)
    after(layer, lambda _: stream[0])
    return fault_at(f"{at}.moe.residual", "residual-missing")


def other_renormalisation(program: Program) -> Change:
    """Routing weights are renormalised where they must not be, or the other way round."""
    layer, at = program.layer()
    layer.mlp.gate.norm_topk_prob = not layer.mlp.gate.norm_topk_prob
    return fault_at(f"{at}.moe.router", "renormalisation")


def scaled_twice(program: Program) -> Change:
    """The routed scaling is applied twice."""
    layer, at = program.layer()
    layer.mlp.gate.routed_scaling_factor **= 2
    return Change(node=f"{at}.moe.router", words=(("fault=routed-scaling",), ("scale=",)))


def shared_left_out(program: Program) -> Change:
    """The shared expert gives zeros."""
    layer, at = program.layer()
    after(layer.mlp.shared_experts, torch.zeros_like)
    return fault_at(f"{at}.moe.reduce", "shared-expert-missing")


def shared_twice(program: Program) -> Change:
    """The shared expert is added twice."""
    layer, at = program.layer()
    shared = gives(layer.mlp.shared_experts)
    after(layer.mlp, lambda total: total + shared[0].view_as(total))
    return fault_at(f"{at}.moe.reduce", "shared-expert-twice")


def exchanged_in_the_shared_expert(program: Program) -> Change:
    """The activation of the shared expert is taken of up."""
    layer, at = program.layer()
    mlp = layer.mlp.shared_experts
    with_forward(mlp, lambda self, x: self.down_proj(self.act_fn(self.up_proj(x)) * self.gate_proj(x)))
    return fault_at(f"{at}.moe.shared_swiglu", "mlp-gate-and-up-exchanged")


def ungated(program: Program) -> Change:
    """The shared expert is added without its gate."""
    layer, at = program.layer()

    def forward(self: Any, hidden: Tensor) -> Tensor:
        rows = hidden.view(-1, hidden.shape[-1])
        shared = self.shared_expert(rows)
        _, weights, ids = self.gate(rows)
        routed: Tensor = self.experts(rows, ids, weights)
        self.shared_expert_gate(rows)
        total: Tensor = (routed + shared).view_as(hidden)
        return total

    with_forward(layer.mlp, forward)
    return fault_at(f"{at}.moe.reduce", "shared-expert-gate-missing")


def other_base(program: Program) -> Change:
    """Positions are rotated with another base."""
    rotary = program.model.model.rotary_emb
    count = len(rotary.inv_freq)
    rotary.inv_freq = 1.0 / program.draw.choice([5e3, 5e5]) ** (torch.arange(0, 2 * count, 2).float() / (2 * count))
    return Change(node="rotary", words=(("fault=rope-base",), ("rope_theta=",)))


def fewer_columns(program: Program) -> Change:
    """The table of rotations is made for another share of a head."""
    config = copy.deepcopy(program.model.config)
    config.rope_parameters["partial_rotary_factor"] = program.draw.choice([0.25, 0.375])
    program.model.model.rotary_emb = type(program.model.model.rotary_emb)(config)
    return Change(node="rotary", words=(("fault=rotary-width",),))


def later_positions(program: Program) -> Change:
    """Positions do not count from 0."""
    rotary = program.model.model.rotary_emb
    inner, by = rotary.forward, program.draw.choice([1, 3])
    with_forward(rotary, lambda _, hidden, position_ids: inner(hidden, position_ids + by))
    return fault_at("rotary", "rope-offset")


def _masked(layer: Any, mask: Callable[[int], Tensor]) -> None:
    inner = layer.self_attn.forward

    def forward(_: Any, hidden_states: Tensor, *args: Any, attention_mask: Tensor, **kwargs: Any) -> Any:
        visible = mask(hidden_states.shape[1])
        low = torch.finfo(attention_mask.dtype).min
        changed = torch.zeros_like(attention_mask).masked_fill(~visible, low)
        return inner(hidden_states, *args, attention_mask=changed, **kwargs)

    with_forward(layer.self_attn, forward)


def other_window(program: Program) -> Change:
    """A layer sees a few tokens only."""
    layer, at = program.layer()
    reach = program.draw.choice([3, 4])
    _masked(layer, lambda n: torch.ones(n, n, dtype=torch.bool).tril().triu(1 - reach))
    return Change(node=f"{at}.attention.attend", words=(("fault=window",), ("window=",)))


def no_sinks(program: Program) -> Change:
    """Attention runs without its sinks."""
    layer, at = program.layer()
    attend_by(layer, "without-sinks", attention(frozenset()))
    return fault_at(f"{at}.attention.attend", "sinks-missing")


def other_scale(program: Program) -> Change:
    """Scores are scaled by another number."""
    layer, at = program.layer()
    layer.self_attn.scaling *= program.draw.choice([0.5, 2.0, 2**0.5])
    return fault_at(f"{at}.attention.attend", "softmax-scale")


def not_scaled(program: Program) -> Change:
    """Scores are not scaled."""
    layer, at = program.layer()
    layer.self_attn.scaling = 1.0
    return fault_at(f"{at}.attention.attend", "softmax-scale-missing")


def hot_head(program: Program) -> Change:
    """Logits are divided by a temperature."""
    heat = program.draw.choice([0.6, 0.9, 1.4])
    after(program.model.lm_head, lambda logits: logits / heat)
    return Change(node="lm_head", words=(("fault=temperature-in-the-head",), ("temperature=",)))


def unclipped(program: Program) -> Change:
    """Queries, keys and values are not clipped."""
    layer, at = program.layer()
    own_config(layer).clip_qkv = None
    return Change(node=f"{at}.attention.attend", words=(("fault=clip-missing",), ("limit=",)))


FAULTS: Mapping[Patch, tuple[str, ...]] = {
    loaded.another_expert: PLAIN,
    loaded.zeroed_expert: PLAIN,
    loaded.scaled_expert: PLAIN,
    loaded.turned_experts: PLAIN,
    loaded.gate_for_up: PLAIN,
    loaded.experts_of_another_layer: PLAIN,
    loaded.projection_of_another_layer: ALL,
    loaded.norm_of_another_layer: ALL,
    loaded.doubled_projection: GROUPED,
    loaded.transposed: ("qwen2_moe",),
    loaded.zeroed_projection: GROUPED,
    loaded.bias_left_out: ("qwen2_moe", "gpt_oss"),
    loaded.bias_on_every_rank: ("qwen2_moe", "gpt_oss"),
    other_eps: ALL,
    norm_left_out: ALL,
    norm_twice: ALL,
    loaded.norm_of_ones: ALL,
    key_norm_left_out: ("qwen3_moe", "glm4_moe"),
    block_not_added: ALL,
    other_renormalisation: ("qwen3_moe", "qwen2_moe", "olmoe", *SHARED),
    scaled_twice: SHARED,
    loaded.no_correction: SHARED,
    shared_left_out: SHARED,
    shared_twice: SHARED,
    exchanged_in_the_shared_expert: SHARED,
    ungated: ("qwen2_moe",),
    fewer_columns: ("glm4_moe",),
    other_base: ("qwen3_moe", "mixtral", "qwen2_moe", "olmoe"),
    later_positions: ALL,
    other_window: ("qwen3_moe", "mixtral", "olmoe", "glm4_moe"),
    no_sinks: ("gpt_oss",),
    loaded.only_up_scaled: PLAIN,
    loaded.only_down_exchanged: PLAIN,
    other_scale: GROUPED,
    not_scaled: ALL,
    hot_head: ALL,
    unclipped: ("olmoe_clip",),
}
"""Each with the models that it can happen to."""
