"""A small model of transformers with kernels of Liger in it, captured; run by test_explained.py."""

from __future__ import annotations

from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tests.engines import live_liger
from tests.engines.live import answer
from tests.evidence.traced import captured, tokens


def _normed(program: Any, layer: int, mode: str) -> None:
    norm = program.model.layers[layer].post_attention_layernorm

    def forward(self: Any, hidden: Tensor) -> Tensor:
        rows = hidden.reshape(-1, hidden.shape[-1])
        return live_liger.norm(rows, self.weight, self.variance_epsilon, 0.0, mode)["output"].view_as(hidden)

    norm.forward = MethodType(forward, norm)


def _combined(program: Any, layer: int) -> None:
    """transformers' own rows of each slot, weighted and added up by Liger."""
    experts = program.model.layers[layer].mlp.experts

    def forward(self: Any, hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        rows = hidden.new_zeros(*ids.shape, hidden.shape[-1])
        for expert in sorted(set(ids.flatten().tolist())):
            token, slot = torch.where(ids == expert)
            gate, up = functional.linear(hidden[token], self.gate_up_proj[expert]).chunk(2, -1)
            rows[token, slot] = functional.linear(functional.silu(gate) * up, self.down_proj[expert])
        return live_liger.combine(rows, weights)["output"]

    experts.forward = MethodType(forward, experts)


def _moe(program: Any, layer: int) -> None:
    experts = program.model.layers[layer].mlp.experts

    def forward(self: Any, hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return live_liger.moe(hidden, self.gate_up_proj, self.down_proj, ids, weights)["output"]

    experts.forward = MethodType(forward, experts)


def trace(checkpoint: str, folder: str, shape: tuple[int, int]) -> dict[str, Tensor]:
    """Norms of three modes in the three layers, the sum over slots of the second, all experts of the third."""

    def patch(program: Any) -> None:
        for layer, mode in enumerate(("gemma", "llama", "none")):
            _normed(program, layer, mode)
        _combined(program, 1)
        _moe(program, 2)

    captured(Path(checkpoint), Path(folder), tokens(shape), patch=patch, dtype=torch.float16)
    return {"done": torch.ones(1)}


if __name__ == "__main__":
    answer({"trace": trace})
