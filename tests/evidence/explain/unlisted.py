"""Sums that transformers' Qwen3-MoE makes in orders that no file lists, and faults that no order makes up for."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

Add = Callable[[list[Tensor]], Tensor]


def crossed(parts: list[Tensor]) -> Tensor:
    """(0 + 3) + (1 + 2) of four values."""
    a, b, c, d = parts
    return (a + d) + (b + c)


def chained(parts: list[Tensor]) -> Tensor:
    """2, 0, 3, 1, one after the other, of four values."""
    a, b, c, d = parts
    return ((c + a) + d) + b


def strided(lanes: int) -> Add:
    """So many strided accumulators, added up from the last one on."""

    def add(values: list[Tensor]) -> Tensor:
        sums = values[:lanes]
        for number, value in enumerate(values[lanes:]):
            sums[number % lanes] = sums[number % lanes] + value
        total = sums[-1]
        for part in reversed(sums[:-1]):
            total = total + part
        return total

    return add


def products(x: Tensor, weight: Tensor, add: Add) -> Tensor:
    """A product with a transposed weight, of which each sum is added by `add`."""
    return add(list((x[..., None, :] * weight).unbind(-1)))


def combine(program: Any, add: Add, *, layer: int = 1, down: Callable[..., Tensor] = functional.linear) -> None:
    """The rows of a token's experts, which `down` makes, are added by `add`, every sum rounded to their dtype."""

    def forward(self: Any, hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        rows = hidden.new_zeros(*ids.shape, hidden.shape[-1])
        for expert in sorted(set(ids.flatten().tolist())):
            token, slot = torch.where(ids == expert)
            gate, up = functional.linear(hidden[token], self.gate_up_proj[expert]).chunk(2, -1)
            row = down(functional.silu(gate) * up, self.down_proj[expert])
            rows[token, slot] = (row * weights[token, slot, None]).to(row.dtype)
        return add(list(rows.unbind(1)))

    experts = program.model.layers[layer].mlp.experts
    experts.forward = types.MethodType(forward, experts)


def norm(program: Any, add: Add) -> None:
    """The squares of the final norm's rows are added by `add`."""

    def forward(self: Any, hidden: Tensor) -> Tensor:
        wide = hidden.float()
        mean = add(list(wide.pow(2).unbind(-1))) / wide.shape[-1]
        return self.weight * (wide * torch.rsqrt(mean[..., None] + self.variance_epsilon)).to(hidden.dtype)

    program.model.norm.forward = types.MethodType(forward, program.model.norm)


def projection(program: Any, add: Add) -> None:
    """The output projection of a layer is cut into four parts of its inputs, which are added by `add`, all in fp32."""

    def forward(self: Any, hidden: Tensor) -> Tensor:
        parts = zip(hidden.float().chunk(4, -1), self.weight.float().chunk(4, -1), strict=True)
        return add([functional.linear(x, w) for x, w in parts]).to(hidden.dtype)

    o_proj = program.model.layers[0].self_attn.o_proj
    o_proj.forward = types.MethodType(forward, o_proj)


def combine_twice(program: Any) -> None:
    """A layer's down projections and the rows of a token's experts are added up in orders that no file lists."""
    combine(program, chained, down=partial(products, add=strided(3)))


def _in_two_orders(module: Any, parts: Add, add: Add) -> None:
    """A linear module is cut into four parts of its inputs: parts and products are added in two orders, in fp32."""

    def forward(self: Any, hidden: Tensor) -> Tensor:
        cut = zip(hidden.float().chunk(4, -1), self.weight.float().chunk(4, -1), strict=True)
        return parts([products(x, w, add) for x, w in cut]).to(hidden.dtype)

    module.forward = types.MethodType(forward, module)


def projection_twice(program: Any) -> None:
    """The output projection of a layer adds up its parts and their products in orders that no file lists."""
    _in_two_orders(program.model.layers[0].self_attn.o_proj, crossed, strided(3))


def head_twice(program: Any) -> None:
    """The head does."""
    _in_two_orders(program.lm_head, chained, strided(5))


def router_twice(program: Any) -> None:
    """The router of a layer adds up its softmax and the weights that it makes sum to 1 in orders that no file lists."""

    def forward(self: Any, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = functional.linear(hidden.reshape(-1, hidden.shape[-1]), self.weight)
        powers = (logits.float() - logits.float().amax(-1, keepdim=True)).exp()
        weights, ids = (powers / strided(3)(list(powers.unbind(-1)))[..., None]).topk(self.top_k, dim=-1)
        return logits, (weights / chained(list(weights.unbind(-1)))[..., None]).to(logits.dtype), ids

    gate = program.model.layers[1].mlp.gate
    gate.forward = types.MethodType(forward, gate)


def attention_twice(program: Any) -> None:
    """The attention of a layer adds up its softmax and its values in orders that no file lists."""
    inner = program.model.layers[1].self_attn

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, scaling: float, **_: Any
    ) -> tuple[Tensor, None]:
        keys, values = (x.repeat_interleave(module.num_key_value_groups, 1) for x in (key, value))
        scores = (query @ keys.transpose(2, 3) * scaling + attention_mask[..., : keys.shape[-2]]).float()
        powers = (scores - scores.amax(-1, keepdim=True)).exp()
        weights = (powers / strided(3)(list(powers.unbind(-1)))[..., None]).to(query.dtype)
        products = (weights[..., None] * values[:, :, None]).unbind(3)
        return strided(5)(list(products)).transpose(1, 2).contiguous(), None

    names = AttentionInterface(), AttentionMaskInterface()
    names[0].register("twice", attend)
    names[1].register("twice", eager_mask)
    inner.config = copy.deepcopy(inner.config)
    inner.config._attn_implementation = "twice"


def nudged_expert(program: Any) -> None:
    """A few weights of one expert are wrong by 2^-9."""
    program.model.layers[1].mlp.experts.down_proj.data[0, 3] += 2**-9


def nudged_rows(program: Any) -> None:
    """What a token's experts give is wrong in one element by one unit in the last place, at every token."""
    experts = program.model.layers[1].mlp.experts
    inner = experts.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        out: Tensor = inner(*args, **kwargs)
        bits = out.view(torch.int16).clone()
        bits[..., 5] += 1
        return bits.view(out.dtype)

    experts.forward = types.MethodType(forward, experts)


def scaled_norm(program: Any) -> None:
    """The final norm divides by the number of values less one."""

    def forward(self: Any, hidden: Tensor) -> Tensor:
        wide = hidden.float()
        mean = wide.pow(2).sum(-1, keepdim=True) / (wide.shape[-1] - 1)
        return self.weight * (wide * torch.rsqrt(mean + self.variance_epsilon)).to(hidden.dtype)

    program.model.norm.forward = types.MethodType(forward, program.model.norm)
