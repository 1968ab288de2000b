"""Choices of numerics as torch code: one function for each kind of op, with a switch for each choice.

A combination turns on three switches or more of one op, a single choice one. The words are moeparity's for a switch;
switches that change no bit beside the others need not be named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.explained.attend import attend_by, attention, sdpa
from benchmarks.explained.program import Change, Program, with_forward

Switches = frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """An op: its switches with the word for each, those that exclude each other, models, and what patches a layer."""

    words: Mapping[str, str]
    models: tuple[str, ...]
    patch: Callable[[Program, Switches], str]
    apart: tuple[frozenset[str], ...] = ()

    def drawn(self, program: Program, count: int) -> Change:
        """Some layer patched with so many switches."""
        names = sorted(self.words)
        while True:
            on = frozenset(program.draw.sample(names, min(count, len(names))))
            if not any(len(on & rivals) > 1 for rivals in self.apart):
                break
        state = program.draw.getstate()

        def patch(program: Program, name: str) -> None:
            program.draw.setstate(state)
            self.patch(program, on - {name})

        without = {self.words[name]: partial(patch, name=name) for name in sorted(on)} if len(on) > 1 else {}
        words = tuple(self.words[name] for name in sorted(on))
        return Change(node=self.patch(program, on), words=(words,), without=without)


def _norm(program: Program, on: Switches) -> str:
    layer, at = program.layer()

    def forward(self: Any, hidden: Tensor) -> Tensor:
        squares = hidden.pow(2).float() if "square" in on else hidden.float().pow(2)
        eps = 0.015625 if "eps" in on else self.variance_epsilon
        scale = torch.rsqrt(squares.mean(-1, keepdim=True) + eps)
        weight = self.weight + 1 if "offset" in on else self.weight
        if "association" in on:
            wide: Tensor = hidden.float() * (weight.float() * scale)
        elif "normalized" in on:
            wide = hidden.float() * scale * weight.float()
        else:
            wide = weight * (hidden.float() * scale).to(hidden.dtype)
        return wide.to(hidden.dtype)

    with_forward(layer.post_attention_layernorm, forward)
    return f"{at}.moe.norm"


def _head(program: Program, on: Switches) -> str:
    def forward(self: Any, hidden: Tensor) -> Tensor:
        return functional.linear(hidden.float(), self.weight.float())

    with_forward(program.model.lm_head, forward)
    return "lm_head"


def _attention(program: Program, on: Switches) -> str:
    layer, at = program.layer()
    attend_by(layer, "-".join(sorted(on)), sdpa if "sdpa" in on else attention(on))
    return f"{at}.attention.attend"


def _router(program: Program, on: Switches) -> str:
    layer, at = program.layer()

    def forward(self: Any, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = functional.linear(hidden.reshape(-1, self.hidden_dim), self.weight)
        scores = logits.float().softmax(-1)
        scores = scores.to(logits.dtype) if "scores" in on else scores
        ids = torch.topk(scores, self.top_k, dim=-1)[1]
        weights = scores.gather(-1, ids).float()
        total = weights.sum(-1, keepdim=True) + (0.03125 if "eps" in on else 0)
        weights = weights * (1 / total) if "reciprocal" in on else weights / total
        native = logits.dtype if type(self).__name__.startswith("Qwen") else torch.float32
        wider = torch.float32 if native == logits.dtype else logits.dtype
        return logits, weights.to(wider if "weights" in on else native), ids

    with_forward(layer.mlp.gate, forward)
    return f"{at}.moe.router"


def _experts(program: Program, on: Switches) -> str:
    layer, at = program.layer()

    def forward(self: Any, hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        rows = torch.zeros(*ids.shape, hidden.shape[-1], dtype=torch.float32)
        for expert in sorted(set(ids.flatten().tolist())):
            token, slot = torch.where(ids == expert)
            gate, up = functional.linear(hidden[token], self.gate_up_proj[expert]).chunk(2, -1)
            if "activation" in on:
                product = (functional.silu(gate.float()) * up.float()).to(up.dtype)
            else:
                product = functional.silu(gate) * up
            weight = weights[token, slot, None]
            if "score_site" in on:
                product = (product * weight).to(product.dtype)
            row = functional.linear(product, self.down_proj[expert])
            if "score_site" not in on:
                row = row.float() * weight.float() if "weighted" in on else (row * weight).to(row.dtype)
            rows[token, slot] = row.float()
        slots = range(ids.shape[1])
        if "leaves" not in on:
            rows = rows.gather(1, ids.argsort(-1)[..., None].expand(rows.shape))
        total = torch.zeros(hidden.shape, dtype=torch.float32 if "accumulate" in on else hidden.dtype)
        for place in reversed(slots) if "reverse" in on else slots:
            total = (total.float() + rows[:, place]).to(total.dtype)
        return total.to(hidden.dtype)

    with_forward(layer.mlp.experts, forward)
    return f"{at}.moe.combine"


KINDS = {
    "norm": Kind(
        words={
            "square": "square=bf16",
            "eps": "eps=",
            "normalized": "normalized=fp32",
            "offset": "offset=1",
            "association": "association=weight_rstd_first",
        },
        models=("qwen3_moe", "mixtral", "qwen2_moe", "olmoe", "glm4_moe"),
        patch=_norm,
        apart=(frozenset({"normalized", "association"}),),
    ),
    "attention": Kind(
        words={"scores": "scores=fp32", "softmax": "softmax=", "probabilities": "probabilities=fp32"},
        models=("qwen3_moe", "mixtral", "olmoe", "glm4_moe"),
        patch=_attention,
    ),
    "router": Kind(
        words={
            "scores": "scores=bf16",
            "eps": "renormalize_eps=",
            "reciprocal": "renormalize=reciprocal",
            "weights": "weights=",
        },
        models=("qwen3_moe", "mixtral", "qwen2_moe"),
        patch=_router,
    ),
    "experts": Kind(
        words={
            "activation": "activation=fp32",
            "score_site": "score_site=activation",
            "weighted": "weighted=fp32",
            "accumulate": "accumulate=fp32",
            "leaves": "leaves=slot",
            "reverse": "order=reverse",
        },
        models=("qwen3_moe", "qwen2_moe", "olmoe"),
        patch=_experts,
        apart=(frozenset({"score_site", "weighted"}),),
    ),
}
SINGLE = {
    **KINDS,
    "sdpa": Kind(words={"sdpa": "implementation=sdpa"}, models=("qwen3_moe", "mixtral", "olmoe"), patch=_attention),
    "head": Kind(words={"wide": "lm_head:"}, models=("qwen3_moe", "mixtral", "gpt_oss"), patch=_head),
}
