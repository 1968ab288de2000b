"""Faults of `graphs/faults`, as they would happen in a program of transformers; each says what it changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from benchmarks.explained.attend import attend_by, attention, own_config
from benchmarks.explained.program import Change, Program, after, called_with, gives, with_forward

Patch = Callable[[Program], Change]
SHARED = ("glm4_moe", "deepseek_v3")
"""Models of which each token goes through an expert of its own that all share."""
PLAIN = ("qwen3_moe", "mixtral", "qwen2_moe", "olmoe", "glm4_moe", "deepseek_v3")
"""Models whose experts are stacks of gate beside up, without biases."""
ALL = (*PLAIN, "gpt_oss")
GROUPED = ("qwen3_moe", "mixtral", "qwen2_moe", "olmoe", "glm4_moe", "gpt_oss")
"""Models with queries, keys and values by heads."""


def _fault(node: str, name: str) -> Change:
    return Change(node=node, words=((f"fault={name}",),))


def _experts(layer: Any) -> tuple[Tensor, Tensor]:
    return layer.mlp.experts.gate_up_proj.data, layer.mlp.experts.down_proj.data


def another_expert(program: Program) -> Change:
    """An expert has the weights of the one before it."""
    layer, at = program.layer()
    expert = program.expert(at)
    for weight in _experts(layer):
        weight[expert] = weight[expert - 1]
    return _fault(f"{at}.moe.combine", "expert-of-another-expert")


def zeroed_expert(program: Program) -> Change:
    """An expert was never loaded."""
    layer, at = program.layer()
    expert = program.expert(at)
    for weight in _experts(layer):
        weight[expert] = 0
    return _fault(f"{at}.moe.combine", "expert-zeroed")


def scaled_expert(program: Program) -> Change:
    """An expert was scaled once too often."""
    layer, at = program.layer()
    expert, factor = program.expert(at), program.draw.choice([0.5, 1.25, 2.0])
    for weight in _experts(layer):
        weight[expert] *= factor
    return _fault(f"{at}.moe.combine", "expert-scaled")


def turned_experts(program: Program) -> Change:
    """All experts stand some places further on."""
    layer, at = program.layer()
    by = program.draw.randrange(1, 4)
    for weight in _experts(layer):
        weight.copy_(weight.roll(by, 0))
    return _fault(f"{at}.moe.combine", "experts-permuted")


def gate_for_up(program: Program) -> Change:
    """Gate and up are stacked the wrong way round."""
    layer, at = program.layer()
    weight, _ = _experts(layer)
    weight.copy_(torch.cat(weight.chunk(2, 1)[::-1], 1))
    return _fault(f"{at}.moe.combine", "gate-and-up-exchanged")


def _other_layer(program: Program, at: str) -> Any:
    layers = program.model.model.layers
    sparse = [layer for layer in layers if hasattr(layer.mlp, "experts")]
    return next(layer for layer in sparse if layer is not layers[int(at[len("layers[") : -1])])


def experts_of_another_layer(program: Program) -> Change:
    """All experts of a layer are those of another."""
    layer, at = program.layer()
    for weight, stale in zip(_experts(layer), _experts(_other_layer(program, at)), strict=True):
        weight.copy_(stale)
    return _fault(f"{at}.moe.combine", "weights-of-another-layer")


def projection_of_another_layer(program: Program) -> Change:
    """A layer's output projection is that of another."""
    layer, at = program.layer()
    stale = _other_layer(program, at).self_attn.o_proj
    for name, tensor in layer.self_attn.o_proj.named_parameters():
        tensor.data.copy_(stale.get_parameter(name).data)
    return _fault(f"{at}.attention.o_proj", "weights-of-another-layer")


def norm_of_another_layer(program: Program) -> Change:
    """A norm's weight is that of another layer."""
    layer, at = program.layer()
    stale = _other_layer(program, at).post_attention_layernorm.weight.data
    layer.post_attention_layernorm.weight.data.copy_(stale)
    return _fault(f"{at}.moe.norm", "weights-of-another-layer")


def doubled_projection(program: Program) -> Change:
    """Keys or values are projected with scaled weights."""
    layer, at = program.layer()
    name = program.draw.choice(["k_proj", "v_proj"])
    getattr(layer.self_attn, name).weight.data.mul_(program.draw.choice([2.0, 0.75]))
    return _fault(f"{at}.attention.{name}", "weights-scaled")


def transposed(program: Program) -> Change:
    """A square matrix is transposed."""
    layer, at = program.layer()
    weight = layer.self_attn.o_proj.weight.data
    weight.copy_(weight.t().clone())
    return _fault(f"{at}.attention.o_proj", "weights-transposed")


def zeroed_projection(program: Program) -> Change:
    """Values are all zero."""
    layer, at = program.layer()
    layer.self_attn.v_proj.weight.data.zero_()
    return _fault(f"{at}.attention.v_proj", "weights-zeroed")


def bias_left_out(program: Program) -> Change:
    """A projection has lost its bias."""
    layer, at = program.layer()
    name = program.draw.choice(["q_proj", "v_proj"])
    getattr(layer.self_attn, name).bias = None
    return _fault(f"{at}.attention.{name}", "bias-missing")


def bias_on_every_rank(program: Program) -> Change:
    """A bias is added by every rank."""
    layer, at = program.layer()
    layer.self_attn.q_proj.bias.data.mul_(program.draw.choice([2, 4]))
    return _fault(f"{at}.attention.q_proj", "bias-scaled")


def other_eps(program: Program) -> Change:
    """A norm has another eps."""
    layer, at = program.layer()
    layer.input_layernorm.variance_epsilon = program.draw.choice([3e-3, 0.02, 7e-2])
    return Change(node=f"{at}.attention.norm", words=(("eps=",), ("fault=norm-eps",)))


def norm_left_out(program: Program) -> Change:
    """A norm is left out."""
    layer, at = program.layer()
    with_forward(layer.input_layernorm, lambda _, hidden: hidden)
    return _fault(f"{at}.attention.norm", "norm-missing")


def norm_twice(program: Program) -> Change:
    """A norm is applied twice."""
    layer, at = program.layer()
    inner = layer.post_attention_layernorm.forward
    with_forward(layer.post_attention_layernorm, lambda _, hidden: inner(inner(hidden)))
    return _fault(f"{at}.moe.norm", "norm-twice")


def norm_of_ones(program: Program) -> Change:
    """The final norm has lost its weight."""
    program.model.model.norm.weight.data.fill_(1)
    return _fault("norm", "norm-weight-missing")


def key_norm_left_out(program: Program) -> Change:
    """Keys are not normalised."""
    layer, at = program.layer()
    with_forward(layer.self_attn.k_norm, lambda _, hidden: hidden)
    return _fault(f"{at}.attention.k_norm", "qk-norm-missing")


def block_not_added(program: Program) -> Change:
    """A block's result is not added to the stream."""
    layer, at = program.layer()
    stream = called_with(layer.post_attention_layernorm)
    after(layer, lambda _: stream[0])
    return _fault(f"{at}.moe.residual", "residual-missing")


def other_renormalisation(program: Program) -> Change:
    """Routing weights are renormalised where they must not be, or the other way round."""
    layer, at = program.layer()
    layer.mlp.gate.norm_topk_prob = not layer.mlp.gate.norm_topk_prob
    return _fault(f"{at}.moe.router", "renormalisation")


def scaled_twice(program: Program) -> Change:
    """The routed scaling is applied twice."""
    layer, at = program.layer()
    layer.mlp.gate.routed_scaling_factor **= 2
    return Change(node=f"{at}.moe.router", words=(("fault=routed-scaling",), ("scale=",)))


def no_correction(program: Program) -> Change:
    """The correction bias was not loaded."""
    layer, at = program.layer()
    layer.mlp.gate.e_score_correction_bias.data.zero_()
    return _fault(f"{at}.moe.router", "correction-bias-missing")


def shared_left_out(program: Program) -> Change:
    """The shared expert gives zeros."""
    layer, at = program.layer()
    after(layer.mlp.shared_experts, torch.zeros_like)
    return _fault(f"{at}.moe.reduce", "shared-expert-missing")


def shared_twice(program: Program) -> Change:
    """The shared expert is added twice."""
    layer, at = program.layer()
    shared = gives(layer.mlp.shared_experts)
    after(layer.mlp, lambda total: total + shared[0].view_as(total))
    return _fault(f"{at}.moe.reduce", "shared-expert-twice")


def exchanged_in_the_shared_expert(program: Program) -> Change:
    """The activation of the shared expert is taken of up."""
    layer, at = program.layer()
    mlp = layer.mlp.shared_experts
    with_forward(mlp, lambda self, x: self.down_proj(self.act_fn(self.up_proj(x)) * self.gate_proj(x)))
    return _fault(f"{at}.moe.shared_swiglu", "mlp-gate-and-up-exchanged")


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
    return _fault(f"{at}.moe.reduce", "shared-expert-gate-missing")


def other_base(program: Program) -> Change:
    """Positions are rotated with another base."""
    rotary = program.model.model.rotary_emb
    count = len(rotary.inv_freq)
    rotary.inv_freq = 1.0 / program.draw.choice([5e3, 5e5]) ** (torch.arange(0, 2 * count, 2).float() / (2 * count))
    return Change(node="rotary", words=(("fault=rope-base",), ("rope_theta=",)))


def later_positions(program: Program) -> Change:
    """Positions do not count from 0."""
    rotary = program.model.model.rotary_emb
    inner, by = rotary.forward, program.draw.choice([1, 3])
    with_forward(rotary, lambda _, hidden, position_ids: inner(hidden, position_ids + by))
    return _fault("rotary", "rope-offset")


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
    return _fault(f"{at}.attention.attend", "sinks-missing")


def only_up_scaled(program: Program) -> Change:
    """Of one expert up alone is scaled."""
    layer, at = program.layer()
    expert, weight = program.expert(at), layer.mlp.experts.gate_up_proj.data
    weight[expert, weight.shape[1] // 2 :] *= 1.125
    return _fault(f"{at}.moe.combine", "expert-scaled(part=up")


def only_down_exchanged(program: Program) -> Change:
    """Of one expert down alone is another's."""
    layer, at = program.layer()
    expert, weight = program.expert(at), layer.mlp.experts.down_proj.data
    weight[expert] = weight[expert - 1].clone()
    return _fault(f"{at}.moe.combine", "expert-of-another-expert(part=down")


def other_scale(program: Program) -> Change:
    """Scores are scaled by another number."""
    layer, at = program.layer()
    layer.self_attn.scaling *= program.draw.choice([0.5, 2.0, 2**0.5])
    return _fault(f"{at}.attention.attend", "softmax-scale")


def not_scaled(program: Program) -> Change:
    """Scores are not scaled."""
    layer, at = program.layer()
    layer.self_attn.scaling = 1.0
    return _fault(f"{at}.attention.attend", "softmax-scale-missing")


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
    another_expert: PLAIN,
    zeroed_expert: PLAIN,
    scaled_expert: PLAIN,
    turned_experts: PLAIN,
    gate_for_up: PLAIN,
    experts_of_another_layer: PLAIN,
    projection_of_another_layer: ALL,
    norm_of_another_layer: ALL,
    doubled_projection: GROUPED,
    transposed: ("qwen2_moe",),
    zeroed_projection: GROUPED,
    bias_left_out: ("qwen2_moe", "gpt_oss"),
    bias_on_every_rank: ("qwen2_moe", "gpt_oss"),
    other_eps: ALL,
    norm_left_out: ALL,
    norm_twice: ALL,
    norm_of_ones: ALL,
    key_norm_left_out: ("qwen3_moe", "glm4_moe"),
    block_not_added: ALL,
    other_renormalisation: ("qwen3_moe", "qwen2_moe", "olmoe", *SHARED),
    scaled_twice: SHARED,
    no_correction: SHARED,
    shared_left_out: SHARED,
    shared_twice: SHARED,
    exchanged_in_the_shared_expert: SHARED,
    ungated: ("qwen2_moe",),
    other_base: ("qwen3_moe", "mixtral", "qwen2_moe", "olmoe"),
    later_positions: ALL,
    other_window: ("qwen3_moe", "mixtral", "olmoe", "glm4_moe"),
    no_sinks: ("gpt_oss",),
    only_up_scaled: PLAIN,
    only_down_exchanged: PLAIN,
    other_scale: GROUPED,
    not_scaled: ALL,
    hot_head: ALL,
    unclipped: ("olmoe_clip",),
}
"""Each with the models that it can happen to."""
