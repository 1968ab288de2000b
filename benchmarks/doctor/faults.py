"""What is planted: parts of the weights stale, mistakes in model code, numbers, tokens, and what no hypothesis is."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.doctor.faulty import (
    cut_to,
    decoded_otherwise,
    first_twice,
    moved_response,
    older_prompt,
    packed,
    renormalised,
    without_first,
)
from tests.doctor.programs import Patch

PROMPT = 8
STALE: Mapping[str, str] = {
    "stale weights of layer 0": ".layers.0.",
    "stale weights of layer 1": ".layers.1.",
    "stale weights of layers[0].moe.experts": ".layers.0.mlp.experts.",
    "stale weights of layers[1].moe.experts": ".layers.1.mlp.experts.",
    "stale weights of attention of layer 0": ".layers.0.self_attn.",
    "stale weights of attention of layer 1": ".layers.1.self_attn.",
    "stale weights of attention of all layers": ".self_attn.",
    "stale weights of routed experts of all layers": ".mlp.experts.",
    "stale weights of layers[1].attention.o_proj": ".layers.1.self_attn.o_proj.",
    "stale weights of layers[0].attention.v_proj": ".layers.0.self_attn.v_proj.",
    "stale weights of layers[0].moe.gate": ".layers.0.mlp.gate.",
    "stale weights of lm_head": "lm_head.",
    "stale weights of embed": "embed_tokens.",
    "stale expert 3 of layers[1].moe.experts": ".layers.1.mlp.experts.3.",
    "stale expert 7 of layers[0].moe.experts": ".layers.0.mlp.experts.7.",
}
"""The cause to be named, and the weights that are as they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """What a fault of tokens is planted in."""

    current: Path
    previous: Path
    ids: Tensor


Scorer = Callable[[Programs], Tensor]


def without_query_norm(model: Any) -> None:
    """Queries and keys that are not normalised."""
    for layer in model.model.layers:
        layer.self_attn.q_norm = layer.self_attn.k_norm = nn.Identity()


def exchanged(model: Any) -> None:
    """Gate and up of all experts exchanged."""
    for layer in model.model.layers:
        weight = layer.mlp.experts.gate_up_proj
        weight.data = torch.cat(tuple(reversed(weight.data.chunk(2, 1))), 1)


def renormalised_in_one_layer(model: Any) -> None:
    """The same in the second layer alone."""
    router = model.model.layers[1].mlp.gate
    router.norm_topk_prob = not router.norm_topk_prob


def top_k_smaller(model: Any) -> None:
    """One expert less for each token."""
    for layer in model.model.layers:
        layer.mlp.gate.top_k -= 1


MISTAKES: Mapping[str, Patch] = {
    "renormalisation": renormalised,
    "renormalisation of layers[1].moe.router": renormalised_in_one_layer,
    "experts-per-token(count=5)": top_k_smaller,
    "qk-norm-missing": without_query_norm,
    "gate-and-up-exchanged": exchanged,
}


def other_base(base: float, model: Any) -> None:
    """Another rope_theta."""
    frequencies = model.model.rotary_emb.inv_freq
    powers = torch.arange(frequencies.numel()) / frequencies.numel()
    model.model.rotary_emb.inv_freq = base**-powers


def other_scale(factor: float, model: Any) -> None:
    """Another scale before the softmax."""
    for layer in model.model.layers:
        layer.self_attn.scaling *= factor


def other_scale_in_one_layer(factor: float, model: Any) -> None:
    """The same in the second layer alone."""
    model.model.layers[1].self_attn.scaling *= factor


def other_eps(eps: float, model: Any) -> None:
    """Another eps in all norms."""
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = eps


def scaled_values(factor: float, model: Any) -> None:
    """Values of attention too large or too small."""
    for layer in model.model.layers:
        layer.self_attn.v_proj.weight.data *= factor


def tempered(temperature: float, model: Any) -> None:
    """A head that divides by a temperature."""
    model.lm_head.weight.data /= temperature


NUMBERS: Mapping[str, tuple[Callable[[float, Any], None], tuple[float, ...]]] = {
    "rope-base": (other_base, (5e5, 1e6, 1e5)),
    "softmax-scale": (other_scale, (0.6, 0.8, 1.25, 1.6)),
    "softmax-scale of layers[1].attention.attend": (other_scale_in_one_layer, (0.6, 1.4, 1.6)),
    "norm-eps": (other_eps, (1e-2, 1e-1)),
    "weights-scaled of layers[*].attention.v_proj": (scaled_values, (0.5, 0.75, 1.5)),
    "temperature-in-the-head": (tempered, (0.6, 0.8, 1.3)),
}
"""By family the patch, and the numbers that are drawn."""


def _tokens(draw: random.Random) -> dict[str, Scorer]:
    left_off, by = draw.choice((1, 2, 3)), draw.choice((-1, 1, 2))
    count, top_k = draw.choice((2, 4)), draw.choice((5, 10, 20))
    older = draw.choice((4, 12))
    plural = "first token missing" if left_off == 1 else f"first {left_off} tokens missing"
    return {
        plural: lambda of: without_first(of.current, of.ids, left_off),
        "first token twice": lambda of: first_twice(of.current, of.ids),
        f"packing without its mask, positions running, {count} sequences": lambda of: packed(of.current, of.ids, count),
        "prompt computed with older weights": lambda of: older_prompt(of.current, of.previous, of.ids, PROMPT),
        f"first {older} tokens computed with older weights": lambda of: older_prompt(
            of.current, of.previous, of.ids, older
        ),
        "renormalisation in decoding alone": lambda of: decoded_otherwise(of.current, of.ids, PROMPT, renormalised),
        f"positions of the response {by:+d}": lambda of: moved_response(of.current, of.ids, PROMPT, by),
        f"top_k={top_k}": lambda of: cut_to(of.current, of.ids, top_k),
    }


def drawn_tokens(draw: random.Random) -> tuple[str, Scorer]:
    """A fault of tokens with the name that it is to be given."""
    return draw.choice(tuple(_tokens(draw).items()))


def drawn_number(draw: random.Random) -> tuple[str, float, Patch]:
    """A fault with a number: its family, the number, and the patch."""
    family, (patch, values) = draw.choice(tuple(NUMBERS.items()))
    value = draw.choice(values)
    return family, value, partial(patch, value)


def other_activation(model: Any) -> None:
    """Another function between gate and up."""
    for layer in model.model.layers:
        layer.mlp.experts.act_fn = nn.GELU()


def coarse_router(model: Any) -> None:
    """Logits of routers in steps of a half."""
    for layer in model.model.layers:
        layer.mlp.gate.register_forward_hook(_in_steps)


def _in_steps(router: Any, _: Any, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    logits = (outputs[0] * 2).round() / 2
    weights, experts = torch.softmax(logits.float(), -1).topk(router.top_k, -1)
    weights = weights / weights.sum(-1, keepdim=True) if router.norm_topk_prob else weights
    return logits, weights.to(outputs[1].dtype), experts


def older(model: Any) -> None:
    """Weights of one layer that are those of no checkpoint at hand."""
    draw = torch.Generator().manual_seed(17)
    weight = model.model.layers[1].self_attn.o_proj.weight
    weight.data += (weight.data.float() * 0.3 * torch.randn(weight.shape, generator=draw)).to(weight.dtype)


def faster_positions(model: Any) -> None:
    """Positions that count too fast."""
    model.model.rotary_emb.inv_freq *= 1.3


def centred_norms(model: Any) -> None:
    """Norms that take the mean off, as LayerNorm does."""
    for layer in model.model.layers:
        layer.input_layernorm.register_forward_pre_hook(lambda _, x: (x[0] - x[0].mean(-1, keepdim=True),))


def rolled_heads(model: Any) -> None:
    """Values that stand at the next head's place."""
    for layer in model.model.layers:
        layer.self_attn.v_proj.register_forward_hook(lambda _, __, y: y.roll(32, -1))


UNLISTED: Mapping[str, Patch] = {
    function.__name__: function
    for function in (other_activation, coarse_router, older, faster_positions, centred_norms, rolled_heads)
}
