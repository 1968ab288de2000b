"""What is planted in a model of transformers: mistakes in its code, numbers other than the configuration's, and what
no hypothesis is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.doctor.models import Architecture
from tests.doctor.faulty import renormalised, routers, tied
from tests.doctor.programs import Patch


def without_query_norm(model: Any) -> None:
    """Queries and keys that are not normalised."""
    for layer in model.model.layers:
        for name in ("q_norm", "k_norm", "q_a_layernorm", "kv_a_layernorm"):
            if hasattr(layer.self_attn, name):
                setattr(layer.self_attn, name, nn.Identity())


def exchanged(model: Any) -> None:
    """Gate and up of all experts exchanged."""
    for layer in model.model.layers:
        _exchange(layer)


def exchanged_in_one_layer(model: Any) -> None:
    """The same in the second layer alone."""
    _exchange(model.model.layers[1])


def _exchange(layer: Any) -> None:
    if hasattr(layer.mlp, "experts"):
        weight = layer.mlp.experts.gate_up_proj
        weight.data = torch.cat(tuple(reversed(weight.data.chunk(2, 1))), 1)


def renormalised_in_one_layer(model: Any) -> None:
    """Scores renormalised, or not, in the second layer alone."""
    router = model.model.layers[1].mlp.gate
    router.norm_topk_prob = not router.norm_topk_prob


def top_k_smaller(model: Any) -> None:
    """One expert less for each token."""
    for router in routers(model):
        router.top_k -= 1


def without_bias(model: Any) -> None:
    """Experts chosen without the correction bias."""
    for router in routers(model):
        router.e_score_correction_bias.data.zero_()


def without_shared(model: Any) -> None:
    """Shared experts left out."""
    for shared in _shared(model):
        shared.register_forward_hook(lambda _, __, y: torch.zeros_like(y))


def with_shared_twice(model: Any) -> None:
    """Shared experts added twice."""
    for shared in _shared(model):
        shared.register_forward_hook(lambda _, __, y: 2 * y)


def _shared(model: Any) -> list[Any]:
    names = ("shared_expert", "shared_experts")
    candidates = [getattr(layer.mlp, name, None) for layer in model.model.layers for name in names]
    return [shared for shared in candidates if shared is not None]


def without_shared_gate(model: Any) -> None:
    """A shared expert without its gate."""
    for layer in model.model.layers:
        layer.mlp.shared_expert_gate.register_forward_hook(lambda _, __, y: torch.full_like(y, torch.inf))


def without_last_norm(model: Any) -> None:
    """The norm before the head left out."""
    model.model.norm = nn.Identity()


def routing_mistakes(of: Architecture) -> Mapping[str, Patch]:
    """By the name to be given, mistakes of routers."""
    mistakes: dict[str, Patch] = {"renormalisation": renormalised}
    if of.is_softmax:
        mistakes["renormalisation of layers[1].moe.router"] = renormalised_in_one_layer
        mistakes[f"experts-per-token(count={of.top_k - 1})"] = top_k_smaller
    else:
        mistakes["correction-bias-missing"] = without_bias
    return mistakes


def code_mistakes(of: Architecture) -> Mapping[str, Patch]:
    """Mistakes of the rest of the model code."""
    mistakes: dict[str, Patch] = {
        "gate-and-up-exchanged": exchanged,
        "head-tied": tied,
        "norm-missing of norm": without_last_norm,
    }
    if of.is_softmax:
        mistakes["gate-and-up-exchanged of layers[1].moe.experts"] = exchanged_in_one_layer
    if of.name != "qwen2_moe":
        mistakes["qk-norm-missing"] = without_query_norm
    if of.name in {"qwen2_moe", "deepseek_v3"}:
        mistakes |= {"shared-expert-missing": without_shared, "shared-expert-twice": with_shared_twice}
    if of.name == "qwen2_moe":
        mistakes["shared-expert-gate-missing"] = without_shared_gate
    return mistakes


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


def other_routed_scale(scale: float, model: Any) -> None:
    """Another factor on what the experts give together."""
    for router in routers(model):
        router.routed_scaling_factor = scale


Numbers = dict[str, tuple[Callable[[float, Any], None], tuple[float, ...]]]
NUMBERS: Numbers = {
    "rope-base": (other_base, (5e5, 1e6, 1e5)),
    "softmax-scale": (other_scale, (0.6, 0.8, 1.25, 1.6)),
    "softmax-scale of layers[1].attention.attend": (other_scale_in_one_layer, (0.6, 1.4, 1.6)),
    "norm-eps": (other_eps, (1e-2, 1e-1)),
}
"""By family the patch, and the numbers that are drawn, in every architecture."""


def numbers(of: Architecture) -> Numbers:
    """Those of an architecture."""
    if of.is_softmax:
        return NUMBERS | {"weights-scaled of layers[*].attention.v_proj": (scaled_values, (0.5, 0.75, 1.5))}
    return NUMBERS | {"routed-scaling": (other_routed_scale, (1.0, 1.5, 3.5))}


def other_activation(model: Any) -> None:
    """Another function between gate and up."""
    for layer in model.model.layers:
        if hasattr(layer.mlp, "experts"):
            layer.mlp.experts.act_fn = nn.GELU()


def coarse_router(model: Any) -> None:
    """Logits of routers in steps of a half."""
    for router in routers(model):
        router.register_forward_hook(_in_steps)


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
    width = model.model.layers[0].self_attn.head_dim
    for layer in model.model.layers:
        layer.self_attn.v_proj.register_forward_hook(lambda _, __, y: y.roll(width, -1))


def clamped(model: Any) -> None:
    """What the experts give, cut off where it is large."""
    for layer in model.model.layers:
        layer.mlp.register_forward_hook(_clamp)


def _clamp(_: Any, __: Any, y: Tensor) -> Tensor:
    limit = y.std(-1, keepdim=True)
    return torch.minimum(torch.maximum(y, -limit), limit)


def unlisted(of: Architecture) -> Mapping[str, Patch]:
    """Faults that no hypothesis is, by what they are called here."""
    functions: tuple[Patch, ...] = (other_activation, older, faster_positions, centred_norms, clamped)
    if of.is_softmax:
        functions += (coarse_router, rolled_heads)
    return {function.__name__: function for function in functions}
