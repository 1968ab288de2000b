"""A patched transformers model as users' functions: each node of the graph is computed by the model's own submodule.

`use` makes the model; a recipe names the functions below under `impl:`. moeparity calls them and knows nothing of what
is in them.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from benchmarks.planted.patches import Patch
from benchmarks.planted.patching import patch_module, patched, source_of

transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]

Functions = dict[str, Callable[..., Any]]

IMPL = {
    "embed": "embed",
    "rotary": "rotary",
    "layers[*].attention.norm": "attention_norm",
    "layers[*].attention.q_norm": "head_norm",
    "layers[*].attention.k_norm": "head_norm",
    "layers[*].attention.q_proj": "projection",
    "layers[*].attention.k_proj": "projection",
    "layers[*].attention.v_proj": "projection",
    "layers[*].attention.rope": "rope",
    "layers[*].attention.attend": "attend",
    "layers[*].attention.o_proj": "projection",
    "layers[*].moe.norm": "moe_norm",
    "layers[*].moe.gate layers[*].moe.router": "router",
    "layers[*].moe.experts layers[*].moe.combine": "experts",
    "layers[*].moe.shared_gate_proj layers[*].moe.shared_up_proj layers[*].moe.shared_swiglu": "shared_swiglu",
    "layers[*].moe.shared_down_proj": "shared_down",
    "layers[*].moe.shared_gate": "shared_gate",
    "norm": "final_norm",
    "lm_head": "head",
}
"""Nodes, by the function below that computes them; those with a shared expert are left out where there is none."""

SHARED = ("shared_swiglu", "shared_down", "shared_gate")
HEADED = ("head_norm",)


class _Current:
    model: Any = None
    functions: Functions


def use(checkpoint: Path, patch: Patch | None, place: str) -> Any:
    """Make the model whose submodules the functions below call, with a patch at a place, and give it.

    place: the module's name, as in `model.layers.1.self_attn.q_norm`; of rope and attention the layer's attention.
    """
    config = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16, **config)
    model.eval()
    modeling = sys.modules[type(model).__module__]
    _Current.model = model
    _Current.functions = {name: getattr(modeling, name) for name in ("apply_rotary_pos_emb", "eager_attention_forward")}
    if patch is not None and patch.site in {"rope", "attend"}:
        name = "apply_rotary_pos_emb" if patch.site == "rope" else "eager_attention_forward"
        layer = int(place.split(".")[2])
        function = patched(getattr(modeling, name), source_of(modeling, name), patch)
        _Current.functions[f"{name} {layer}"] = function
        _patch_attention(model.get_submodule(place), name, function)
    elif patch is not None:
        patch_module(model.get_submodule(place), patch)
    return model


def _patch_attention(attention: nn.Module, name: str, function: Callable[..., Any]) -> None:
    """Make one layer's attention call another function, so that the model itself runs what the functions below do."""
    forward = type(attention).forward
    text = source_of(type(attention), "forward").replace("ALL_ATTENTION_FUNCTIONS.get_interface(", "_eager(")
    namespace = {**sys.modules[forward.__module__].__dict__, "_eager": lambda _, default: default, name: function}
    exec(compile(text, f"<{name}>", "exec"), namespace)  # noqa: S102 - transformers' own source
    attention.forward = types.MethodType(namespace["forward"], attention)


def _layer(node: Any) -> Any:
    return _Current.model.model.layers[node.layer]


def _function(name: str, node: Any) -> Callable[..., Any]:
    return _Current.functions.get(f"{name} {node.layer}", _Current.functions[name])


def embed(tokens: Tensor, *, node: Any) -> Any:
    """The model's embedding."""
    return _Current.model.model.embed_tokens(tokens)


def rotary(positions: Tensor, *, node: Any) -> Any:
    """cos and sin."""
    return _Current.model.model.rotary_emb(torch.empty(0, dtype=torch.bfloat16), positions)


def attention_norm(x: Tensor, *, node: Any) -> Any:
    """The norm before attention."""
    return _layer(node).input_layernorm(x)


def head_norm(x: Tensor, *, node: Any) -> Any:
    """The norm of each head of queries or keys."""
    return getattr(_layer(node).self_attn, node.name.rpartition(".")[2])(x)


def projection(x: Tensor, *, node: Any) -> Any:
    """One of attention's four GEMMs; heads are told apart behind it."""
    name = node.name.rpartition(".")[2]
    attention = _layer(node).self_attn
    out = getattr(attention, name)(x)
    return out if name == "o_proj" else out.view(*out.shape[:-1], -1, attention.head_dim)


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, node: Any) -> Any:
    """Queries and keys turned, head by head."""
    return _function("apply_rotary_pos_emb", node)(q.transpose(1, 2), k.transpose(1, 2), cos, sin)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *, node: Any) -> Any:
    """Eager attention with a causal mask of the smallest finite number."""
    length, attention = q.shape[2], _layer(node).self_attn
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    causal = torch.zeros(1, 1, length, length, dtype=q.dtype).masked_fill_(hidden, torch.finfo(q.dtype).min)
    forward = _function("eager_attention_forward", node)
    out = forward(attention, q, k, v, causal, scaling=attention.scaling)[0]
    # What scaled_dot_product_attention leaves is head by head.
    return (out if out.shape[1] == length and out.shape[2] == q.shape[1] else out.transpose(1, 2)).flatten(2)


def moe_norm(x: Tensor, *, node: Any) -> Any:
    """The norm before the experts."""
    return _layer(node).post_attention_layernorm(x)


def router(x: Tensor, *, node: Any) -> Any:
    """The router with its GEMM: ids and weights of the chosen experts."""
    _, weights, ids = _block(node).gate(x.reshape(-1, x.shape[-1]))
    return ids.view(*x.shape[:-1], -1), weights.view(*x.shape[:-1], -1)


def experts(x: Tensor, ids: Tensor, weights: Tensor, shared: Tensor | None = None, *, node: Any) -> Any:
    """All routed experts and the sum over them; the shared one is added by the next node."""
    flat, k = x.reshape(-1, x.shape[-1]), ids.shape[-1]
    out = _block(node).experts(flat, ids.reshape(-1, k), weights.reshape(-1, k))
    return out.view(x.shape)


def _block(node: Any) -> Any:
    return _layer(node).mlp


class _Hidden(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


def shared_swiglu(x: Tensor, *, node: Any) -> Any:
    """The shared expert up to its down projection."""
    shared = _block(node).shared_expert
    projection, shared.down_proj = shared.down_proj, _Hidden()
    try:
        return shared(x)
    finally:
        shared.down_proj = projection


def shared_down(x: Tensor, *, node: Any) -> Any:
    """The shared expert's down projection."""
    return _block(node).shared_expert.down_proj(x)


def shared_gate(x: Tensor, *, node: Any) -> Any:
    """How much of the shared expert is used, before the sigmoid."""
    return _block(node).shared_expert_gate(x)


def final_norm(x: Tensor, *, node: Any) -> Any:
    """The norm before the head."""
    return _Current.model.model.norm(x)


def head(x: Tensor, *, node: Any) -> Any:
    """Logits."""
    return _Current.model.lm_head(x)
