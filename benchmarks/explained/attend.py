"""Attention of one layer in place of transformers' own, with a switch for each choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

Attend = Callable[..., tuple[Tensor, Tensor | None]]


def own_config(layer: Any) -> Any:
    """A configuration of a layer's attention alone."""
    shared: PreTrainedConfig = layer.self_attn.config
    layer.self_attn.config = type(shared).from_dict({**shared.to_dict(), "attn_implementation": "eager"})
    return layer.self_attn.config


def attend_by(layer: Any, name: str, attend: Attend) -> None:
    """Let a layer attend by another function, which transformers knows by a name."""
    name = f"explained-{name}"
    ALL_ATTENTION_FUNCTIONS.register(name, attend)
    own_config(layer)._attn_implementation_internal = name  # noqa: SLF001 - checked names are those of packages


def attention(on: frozenset[str]) -> Attend:
    """Eager attention, without sinks, with these switches: scores, softmax, probabilities."""

    def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scaling: float, **_: Any) -> Any:
        k, v = _for_queries(module, k), _for_queries(module, v)
        if "scores" in on:
            scores = torch.matmul(q.float(), k.float().transpose(2, 3)) * scaling + mask
        else:
            scores = torch.matmul(q, k.transpose(2, 3)) * scaling + mask
        chances = scores.softmax(-1) if "softmax" in on else scores.float().softmax(-1)
        if "probabilities" in on:
            out = torch.matmul(chances.float(), v.float()).to(q.dtype)
        else:
            out = torch.matmul(chances.to(q.dtype), v)
        return out.transpose(1, 2).contiguous(), chances

    return attend


def sdpa(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scaling: float, **_: Any) -> Any:
    """torch's scaled_dot_product_attention with the mask that eager attention has."""
    k, v = _for_queries(module, k), _for_queries(module, v)
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling)
    return out.transpose(1, 2).contiguous(), None


def _for_queries(module: Any, x: Tensor) -> Tensor:
    return x.repeat_interleave(module.num_key_value_groups, 1)
