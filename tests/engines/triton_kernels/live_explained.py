"""A small model of transformers with Triton kernels of vLLM and SGLang in it, captured; run by test_explained.py.

They run in Triton's interpreter, each launched by its engine's own function.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any

from tests.engines.triton_kernels import backend  # isort: skip
import torch
from torch import Tensor
from torch.nn import functional
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tests.engines.triton_kernels import live_sglang, live_vllm
from tests.evidence.traced import captured, tokens

Kernel = Callable[..., dict[str, Tensor]]


def _normed(norm: Any, kernel: Kernel) -> None:
    def forward(self: Any, hidden: Tensor) -> Tensor:
        rows = hidden.reshape(-1, hidden.shape[-1])
        return kernel(rows, self.weight.data, self.variance_epsilon)["output"].view_as(hidden)

    norm.forward = MethodType(forward, norm)


def _routed(gate: Any) -> None:
    """Logits and their dtype as transformers has them; scores, choice and weights by SGLang."""

    def forward(self: Any, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = functional.linear(hidden.reshape(-1, hidden.shape[-1]), self.weight)
        out = live_sglang.gate(logits, None, self.top_k, scoring_func="softmax", renormalize=True)
        return logits, out["weights"], out["ids"].long()

    gate.forward = MethodType(forward, gate)


def _summed(experts: Any) -> None:
    """transformers' own rows of each slot, weighted and added up by vLLM."""

    def forward(self: Any, hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        rows = hidden.new_zeros(*ids.shape, hidden.shape[-1])
        for expert in sorted(set(ids.flatten().tolist())):
            token, slot = torch.where(ids == expert)
            gate, up = functional.linear(hidden[token], self.gate_up_proj[expert]).chunk(2, -1)
            rows[token, slot] = functional.linear(functional.silu(gate) * up, self.down_proj[expert])
        return live_vllm.weighted_sum(rows, weights.float(), None)["output"]

    experts.forward = MethodType(forward, experts)


def _computed(experts: Any, kernel: Kernel) -> None:
    def forward(self: Any, hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return kernel(hidden, self.gate_up_proj.data, self.down_proj.data, ids, weights.float())["output"]

    experts.forward = MethodType(forward, experts)


_attended_by: list[int] = []
"""The layers whose attention is vLLM's."""


def _attended(program: Any, layer: int) -> None:
    """Pages of 16 keys, in tiles, by vLLM's unified attention."""
    eager = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def attention(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, **settings: Any) -> Any:
        if module.layer_idx != layer:
            return eager(module, q, k, v, mask, **settings)
        _attended_by.append(layer)
        q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
        lengths = torch.full((len(q),), q.shape[1])
        out = live_vllm.unified(q, k, v, lengths, segments=0, window=0, sinks=None, output=q.dtype)["output"]
        return out, None

    ALL_ATTENTION_FUNCTIONS.register("triton", attention)
    program.config._attn_implementation = "triton"


def trace(checkpoint: str, folder: str, shape: tuple[int, int]) -> dict[str, Tensor]:
    """Norms of two kernels and attention in the first layer, router and sum over slots in the second, experts of either
    engine in the others.
    """

    def patch(program: Any) -> None:
        layers = program.model.layers
        _normed(layers[0].input_layernorm, live_vllm.rms_norm)
        _normed(layers[0].post_attention_layernorm, live_sglang.one_tile_norm)
        _computed(layers[0].mlp.experts, live_vllm.experts)
        _routed(layers[1].mlp.gate)
        _summed(layers[1].mlp.experts)
        _computed(layers[2].mlp.experts, live_sglang.experts)
        _attended(program, 0)

    captured(Path(checkpoint), Path(folder), tokens(shape), patch=patch)
    return {"attended": torch.tensor(_attended_by)}


if __name__ == "__main__":
    backend.answer({"trace": trace})
