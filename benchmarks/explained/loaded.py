"""Weights as a program would load them wrongly: faults of `graphs/faults`, each says what it changes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.explained.program import Change, Program


def fault_at(node: str, name: str) -> Change:
    """What a known fault changes at a node."""
    return Change(node=node, words=((f"fault={name}",),))


def _experts(layer: Any) -> tuple[Tensor, Tensor]:
    return layer.mlp.experts.gate_up_proj.data, layer.mlp.experts.down_proj.data


def another_expert(program: Program) -> Change:
    """An expert has the weights of the one before it."""
    layer, at = program.layer()
    expert = program.expert(at)
    for weight in _experts(layer):
        weight[expert] = weight[expert - 1]
    return fault_at(f"{at}.moe.combine", "expert-of-another-expert")


def zeroed_expert(program: Program) -> Change:
    """An expert was never loaded."""
    layer, at = program.layer()
    expert = program.expert(at)
    for weight in _experts(layer):
        weight[expert] = 0
    return fault_at(f"{at}.moe.combine", "expert-zeroed")


def scaled_expert(program: Program) -> Change:
    """An expert was scaled once too often."""
    layer, at = program.layer()
    expert, factor = program.expert(at), program.draw.choice([0.5, 1.25, 2.0])
    for weight in _experts(layer):
        weight[expert] *= factor
    return fault_at(f"{at}.moe.combine", "expert-scaled")


def turned_experts(program: Program) -> Change:
    """All experts stand some places further on."""
    layer, at = program.layer()
    by = program.draw.randrange(1, 4)
    for weight in _experts(layer):
        weight.copy_(weight.roll(by, 0))
    return fault_at(f"{at}.moe.combine", "experts-permuted")


def gate_for_up(program: Program) -> Change:
    """Gate and up are stacked the wrong way round."""
    layer, at = program.layer()
    weight, _ = _experts(layer)
    weight.copy_(torch.cat(weight.chunk(2, 1)[::-1], 1))
    return fault_at(f"{at}.moe.combine", "gate-and-up-exchanged")


def _other_layer(program: Program, at: str) -> Any:
    layers = program.model.model.layers
    sparse = [layer for layer in layers if hasattr(layer.mlp, "experts")]
    return next(layer for layer in sparse if layer is not layers[int(at[len("layers[") : -1])])


def experts_of_another_layer(program: Program) -> Change:
    """All experts of a layer are those of another."""
    layer, at = program.layer()
    for weight, stale in zip(_experts(layer), _experts(_other_layer(program, at)), strict=True):
        weight.copy_(stale)
    return fault_at(f"{at}.moe.combine", "weights-of-another-layer")


def projection_of_another_layer(program: Program) -> Change:
    """A layer's output projection is that of another."""
    layer, at = program.layer()
    stale = _other_layer(program, at).self_attn.o_proj
    for name, tensor in layer.self_attn.o_proj.named_parameters():
        tensor.data.copy_(stale.get_parameter(name).data)
    return fault_at(f"{at}.attention.o_proj", "weights-of-another-layer")


def norm_of_another_layer(program: Program) -> Change:
    """A norm's weight is that of another layer."""
    layer, at = program.layer()
    stale = _other_layer(program, at).post_attention_layernorm.weight.data
    layer.post_attention_layernorm.weight.data.copy_(stale)
    return fault_at(f"{at}.moe.norm", "weights-of-another-layer")


def doubled_projection(program: Program) -> Change:
    """Keys or values are projected with scaled weights."""
    layer, at = program.layer()
    name = program.draw.choice(["k_proj", "v_proj"])
    getattr(layer.self_attn, name).weight.data.mul_(program.draw.choice([2.0, 0.75]))
    return fault_at(f"{at}.attention.{name}", "weights-scaled")


def transposed(program: Program) -> Change:
    """A square matrix is transposed."""
    layer, at = program.layer()
    weight = layer.self_attn.o_proj.weight.data
    weight.copy_(weight.t().clone())
    return fault_at(f"{at}.attention.o_proj", "weights-transposed")


def zeroed_projection(program: Program) -> Change:
    """Values are all zero."""
    layer, at = program.layer()
    layer.self_attn.v_proj.weight.data.zero_()
    return fault_at(f"{at}.attention.v_proj", "weights-zeroed")


def bias_left_out(program: Program) -> Change:
    """A projection has lost its bias."""
    layer, at = program.layer()
    name = program.draw.choice(["q_proj", "v_proj"])
    getattr(layer.self_attn, name).bias = None
    return fault_at(f"{at}.attention.{name}", "bias-missing")


def bias_on_every_rank(program: Program) -> Change:
    """A bias is added by every rank."""
    layer, at = program.layer()
    layer.self_attn.q_proj.bias.data.mul_(program.draw.choice([2, 4]))
    return fault_at(f"{at}.attention.q_proj", "bias-scaled")


def norm_of_ones(program: Program) -> Change:
    """The final norm has lost its weight."""
    program.model.model.norm.weight.data.fill_(1)
    return fault_at("norm", "norm-weight-missing")


def no_correction(program: Program) -> Change:
    """The correction bias was not loaded."""
    layer, at = program.layer()
    layer.mlp.gate.e_score_correction_bias.data.zero_()
    return fault_at(f"{at}.moe.router", "correction-bias-missing")


def only_up_scaled(program: Program) -> Change:
    """Of one expert up alone is scaled."""
    layer, at = program.layer()
    expert, weight = program.expert(at), layer.mlp.experts.gate_up_proj.data
    weight[expert, weight.shape[1] // 2 :] *= 1.125
    return fault_at(f"{at}.moe.combine", "expert-scaled(part=up")


def only_down_exchanged(program: Program) -> Change:
    """Of one expert down alone is another's."""
    layer, at = program.layer()
    expert, weight = program.expert(at), layer.mlp.experts.down_proj.data
    weight[expert] = weight[expert - 1].clone()
    return fault_at(f"{at}.moe.combine", "expert-of-another-expert(part=down")
