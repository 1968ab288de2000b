"""Faults in what a server loads: changes of a checkpoint's tensors, or of its config.json, each with where it shows.

A change is handed the tensors, the fields of config.json, and the generator of what is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import torch
from torch import Tensor

from benchmarks.explained.served.loaded import Loaded, Planted

Change = Callable[[Loaded], Planted]
PARTS = ("gate", "up", "down")


def _at(*nodes: str, experts: tuple[int, ...] = (), value: float | None = None) -> Planted:
    return Planted(nodes=nodes, experts=experts, value=value)


def _combine(layer: int) -> str:
    return f"layers[{layer}].moe.combine"


def _swap(a: Tensor, b: Tensor) -> None:
    of_a = a.clone()
    a.copy_(b)
    b.copy_(of_a)


def _noise(weight: Tensor, draw: Random) -> None:
    """A step of training between what is meant and what is there."""
    random = torch.Generator().manual_seed(draw.randrange(1 << 30))
    weight.add_((0.02 * torch.randn(weight.shape, generator=random) * weight.float().std()).to(weight.dtype))


def experts_exchanged(of: Loaded) -> Planted:
    """Two experts stand in each other's place."""
    layer = of.layer()
    a = of.expert(layer)
    b = of.draw.choice([e for e in of.chosen[layer] if e != a])
    for part in PARTS:
        _swap(of.expert_weight(layer, a, part), of.expert_weight(layer, b, part))
    return _at(_combine(layer), experts=(min(a, b), max(a, b)))


def down_exchanged(of: Loaded) -> Planted:
    """Down alone of two experts is exchanged."""
    layer = of.layer()
    a = of.expert(layer)
    b = of.draw.choice([e for e in of.chosen[layer] if e != a])
    _swap(of.expert_weight(layer, a, "down"), of.expert_weight(layer, b, "down"))
    return _at(_combine(layer), experts=(min(a, b), max(a, b)))


def experts_turned(of: Loaded) -> Planted:
    """All experts stand one place further on, as after another placement."""
    layer, count = of.layer(), of.experts
    for part in PARTS:
        rows = [of.expert_weight(layer, expert, part).clone() for expert in range(count)]
        for expert in range(count):
            of.expert_weight(layer, expert, part).copy_(rows[expert - 1])
    return _at(_combine(layer))


def another_expert(of: Loaded) -> Planted:
    """An expert has the weights of another."""
    layer = of.layer()
    a = of.expert(layer)
    b = of.draw.choice([e for e in of.chosen[layer] if e != a])
    for part in PARTS:
        of.expert_weight(layer, a, part).copy_(of.expert_weight(layer, b, part))
    return _at(_combine(layer), experts=(a, b))


def expert_zeroed(of: Loaded) -> Planted:
    """An expert was never loaded."""
    layer = of.layer()
    expert = of.expert(layer)
    for part in PARTS:
        of.expert_weight(layer, expert, part).zero_()
    return _at(_combine(layer), experts=(expert,))


def expert_scaled(of: Loaded) -> Planted:
    """Down of an expert was scaled once too often."""
    layer = of.layer()
    expert, factor = of.expert(layer), of.draw.choice([0.5, 1.25, 1.75])
    of.expert_weight(layer, expert, "down").mul_(factor)
    return _at(_combine(layer), experts=(expert,), value=factor)


def gate_and_up(of: Loaded) -> Planted:
    """Gate and up of all experts are exchanged."""
    layer, count = of.layer(), of.experts
    for expert in range(count):
        _swap(of.expert_weight(layer, expert, "gate"), of.expert_weight(layer, expert, "up"))
    return _at(_combine(layer))


def gate_and_up_of_one(of: Loaded) -> Planted:
    """Gate and up of one expert are exchanged."""
    layer = of.layer()
    expert = of.expert(layer)
    _swap(of.expert_weight(layer, expert, "gate"), of.expert_weight(layer, expert, "up"))
    return _at(_combine(layer), experts=(expert,))


def experts_of_another_layer(of: Loaded) -> Planted:
    """All experts of a layer are those of another."""
    layer, count = of.layer(), of.experts
    neighbour = (layer + 1) % int(of.config["num_hidden_layers"])
    for expert in range(count):
        for part in PARTS:
            of.expert_weight(layer, expert, part).copy_(of.expert_weight(neighbour, expert, part))
    return _at(_combine(layer))


def stale_expert(of: Loaded) -> Planted:
    """One expert is of the step before."""
    layer = of.layer()
    expert = of.expert(layer)
    for part in PARTS:
        _noise(of.expert_weight(layer, expert, part), of.draw)
    return _at(_combine(layer), experts=(expert,))


def stale_experts(of: Loaded) -> Planted:
    """All experts of a layer are of the step before."""
    layer, count = of.layer(), of.experts
    for expert in range(count):
        for part in PARTS:
            _noise(of.expert_weight(layer, expert, part), of.draw)
    return _at(_combine(layer))


def stale_router(of: Loaded) -> Planted:
    """A router is of the step before."""
    layer = of.layer()
    _noise(of.router(layer), of.draw)
    return _at(f"layers[{layer}].moe.gate")


def stale_head(of: Loaded) -> Planted:
    """The head is of the step before."""
    _noise(of.tensors["lm_head.weight"], of.draw)
    return _at("lm_head")


def stale_embedding(of: Loaded) -> Planted:
    """The embedding is of the step before."""
    _noise(of.tensors["model.embed_tokens.weight"], of.draw)
    return _at("embed")


def tied_head(of: Loaded) -> Planted:
    """The embedding stands in the head's place."""
    of.tensors["lm_head.weight"].copy_(of.tensors["model.embed_tokens.weight"])
    return _at("lm_head")


def zeroed_keys(of: Loaded) -> Planted:
    """Keys were never loaded."""
    layer = of.layer()
    of.of(layer, "self_attn.k_proj.weight").zero_()
    return _at(f"layers[{layer}].attention.k_proj")


def scaled_values(of: Loaded) -> Planted:
    """Values are projected with weights that were scaled once too often."""
    layer = of.layer()
    factor = of.draw.choice([0.5, 0.75, 2.0])
    of.of(layer, "self_attn.v_proj.weight").mul_(factor)
    return _at(f"layers[{layer}].attention.v_proj", value=factor)


def projection_of_another_layer(of: Loaded) -> Planted:
    """A layer's output projection is that of another."""
    layer = of.layer()
    neighbour = (layer + 1) % int(of.config["num_hidden_layers"])
    of.of(layer, "self_attn.o_proj.weight").copy_(of.of(neighbour, "self_attn.o_proj.weight"))
    return _at(f"layers[{layer}].attention.o_proj")


def norm_of_another_layer(of: Loaded) -> Planted:
    """A norm is that of another layer."""
    layer = of.layer()
    neighbour = (layer + 1) % int(of.config["num_hidden_layers"])
    of.of(layer, "post_attention_layernorm.weight").copy_(of.of(neighbour, "post_attention_layernorm.weight"))
    return _at(f"layers[{layer}].moe.norm")


def key_norm_of_ones(of: Loaded) -> Planted:
    """The norm of keys has lost its weight."""
    layer = of.layer()
    of.of(layer, "self_attn.k_norm.weight").fill_(1)
    return _at(f"layers[{layer}].attention.k_norm")


def final_norm_of_ones(of: Loaded) -> Planted:
    """The final norm has lost its weight."""
    of.tensors["model.norm.weight"].fill_(1)
    return _at("norm")


def interleaved_queries(of: Loaded) -> Planted:
    """Rows of queries lie as another program's rotation wants them: no file lists it."""
    layer = of.layer()
    weight, width = of.of(layer, "self_attn.q_proj.weight"), int(of.config["head_dim"])
    by_head = weight.view(-1, 2, width // 2, weight.shape[-1])
    weight.copy_(by_head.transpose(1, 2).reshape(weight.shape).clone())
    return _at(f"layers[{layer}].attention.q_proj")


def rolled_expert(of: Loaded) -> Planted:
    """One expert's rows lie three places further on: no file lists it."""
    layer = of.layer()
    weight = of.expert_weight(layer, of.expert(layer), "down")
    weight.copy_(weight.roll(3, 0))
    return _at(_combine(layer))


def quantised_values(of: Loaded) -> Planted:
    """A projection went through fp8: no file lists it."""
    layer = of.layer()
    weight = of.of(layer, "self_attn.v_proj.weight")
    weight.copy_(weight.to(torch.float8_e4m3fn).to(weight.dtype))
    return _at(f"layers[{layer}].attention.v_proj")


def other_theta(of: Loaded) -> Planted:
    """Positions are rotated with another base."""
    rope = of.config.get("rope_parameters") or of.config
    rope["rope_theta"] = base = of.draw.choice([5e3, 5e5])
    return _at("layers[*].attention.rope", "rotary", value=base)


def other_renormalisation(of: Loaded) -> Planted:
    """Routing weights are not renormalised."""
    of.config["norm_topk_prob"] = not of.config["norm_topk_prob"]
    nodes = ("layers[*].moe.router", "layers[*].moe.combine")
    return _at(*nodes)


def fewer_experts(of: Loaded) -> Planted:
    """Each token goes to one expert less."""
    before = int(of.config["num_experts_per_tok"])
    of.config["num_experts_per_tok"] = before - 1
    nodes = ("layers[*].moe.router", "layers[*].moe.combine")
    return _at(*nodes, value=before - 1)


def other_eps(of: Loaded) -> Planted:
    """All norms have another eps."""
    of.config["rms_norm_eps"] = eps = of.draw.choice([3e-3, 0.02, 7e-2])
    nodes = ("layers[*].*.norm", "norm", "layers[*].attention.q_norm", "layers[*].attention.k_norm")
    return _at(*nodes, value=eps)


def other_window(of: Loaded) -> Planted:
    """Layers with a window have another."""
    before = int(of.config["sliding_window"])
    of.config["sliding_window"] = before // 2
    return _at("layers[*].attention.attend", value=before // 2)


def query_bias_left_out(of: Loaded) -> Planted:
    """A loader has dropped a bias."""
    layer = of.layer()
    of.of(layer, "self_attn.q_proj.bias").zero_()
    return _at(f"layers[{layer}].attention.q_proj")


def sinks_of_another_layer(of: Loaded) -> Planted:
    """Sinks are those of another layer."""
    layer = of.layer()
    neighbour = (layer + 1) % int(of.config["num_hidden_layers"])
    of.of(layer, "self_attn.sinks").copy_(of.of(neighbour, "self_attn.sinks"))
    return _at(f"layers[{layer}].attention.attend")


def expert_bias_zeroed(of: Loaded) -> Planted:
    """Down's bias of all experts was not loaded."""
    layer = of.layer()
    of.of(layer, "mlp.experts.down_proj_bias").zero_()
    return _at(_combine(layer))


QWEN, MIXTRAL, GPT_OSS = "qwen3_moe", "mixtral", "gpt_oss"
BY_EXPERT, EVERY = (QWEN, MIXTRAL), (QWEN, MIXTRAL, GPT_OSS)
"""Models whose experts are tensors of their own, and whose projections have no bias; all."""
WEIGHTS, STALE = "weights: layout, conversion", "weights: not synced"
QUANTISED, FORMULA = "quantisation grid", "model formula"
CHANGES: Mapping[Change, tuple[tuple[str, ...], str]] = {
    experts_exchanged: (BY_EXPERT, WEIGHTS),
    down_exchanged: (BY_EXPERT, WEIGHTS),
    experts_turned: (BY_EXPERT, WEIGHTS),
    another_expert: (BY_EXPERT, WEIGHTS),
    expert_zeroed: (BY_EXPERT, WEIGHTS),
    expert_scaled: (BY_EXPERT, WEIGHTS),
    gate_and_up: (BY_EXPERT, WEIGHTS),
    gate_and_up_of_one: (BY_EXPERT, WEIGHTS),
    experts_of_another_layer: (BY_EXPERT, WEIGHTS),
    stale_expert: (BY_EXPERT, STALE),
    stale_experts: (BY_EXPERT, STALE),
    stale_router: (EVERY, STALE),
    stale_head: (EVERY, STALE),
    stale_embedding: (EVERY, STALE),
    tied_head: (EVERY, WEIGHTS),
    zeroed_keys: (BY_EXPERT, WEIGHTS),
    scaled_values: (BY_EXPERT, WEIGHTS),
    projection_of_another_layer: (BY_EXPERT, WEIGHTS),
    norm_of_another_layer: (EVERY, WEIGHTS),
    key_norm_of_ones: ((QWEN,), WEIGHTS),
    final_norm_of_ones: (EVERY, WEIGHTS),
    interleaved_queries: ((QWEN,), WEIGHTS),
    rolled_expert: (BY_EXPERT, WEIGHTS),
    quantised_values: (EVERY, QUANTISED),
    other_theta: (EVERY, FORMULA),
    other_renormalisation: ((QWEN,), FORMULA),
    fewer_experts: (EVERY, FORMULA),
    other_eps: (EVERY, FORMULA),
    other_window: ((GPT_OSS,), FORMULA),
    query_bias_left_out: ((GPT_OSS,), WEIGHTS),
    sinks_of_another_layer: ((GPT_OSS,), WEIGHTS),
    expert_bias_zeroed: ((GPT_OSS,), WEIGHTS),
}
"""Each with the models that it can happen to, and the class of causes that it is of."""
