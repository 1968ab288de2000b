"""A small mixture of experts in plain torch, with everything that a trace of it must show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moeparity.evidence.diff.report import DiffReport
from moeparity.evidence.diff.run import diff
from tests.evidence.recorder import recording

HIDDEN, EXPERTS, VOCABULARY, LAYERS = 32, 8, 64, 3
IDS = torch.randint(1, VOCABULARY, (3, 7), generator=torch.Generator().manual_seed(3))


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6))).to(x.dtype)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.o_proj = nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / 4
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        visible = causal & attention_mask[:, None, None, :].bool()
        weights = F.softmax(scores.masked_fill(~visible, -1e9).float(), -1).to(x.dtype)
        return self.o_proj((weights @ v).transpose(1, 2).flatten(-2))


class Experts(nn.Module):
    """Every expert on its own rows, added in the order of experts."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ParameterList(torch.empty(2 * HIDDEN, HIDDEN) for _ in range(EXPERTS))
        self.down = nn.ParameterList(torch.empty(HIDDEN, 2 * HIDDEN) for _ in range(EXPERTS))

    def forward(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for expert in range(EXPERTS):
            token, slot = (ids == expert).nonzero(as_tuple=True)
            rows = F.linear(F.silu(F.linear(x[token], self.up[expert])), self.down[expert])
            out = out.index_add(0, token, rows * weights[token, slot].unsqueeze(-1))
        return out


class MoE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.experts = Experts()

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, HIDDEN)
        weights, ids = F.softmax(self.gate(flat).float(), -1).topk(2)
        return self.experts(flat, ids, weights.to(x.dtype)).reshape(x.shape)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = Norm(), Attention()
        self.moe_norm, self.moe = Norm(), MoE()

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x), attention_mask)
        return x + self.moe(self.moe_norm(x))


class Model(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = Norm(), nn.Linear(HIDDEN, VOCABULARY, bias=False)
        random = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if not name.endswith("norm.weight"):
                parameter.data.normal_(0, 0.2, generator=random)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x))


def model(dtype: torch.dtype = torch.bfloat16) -> Any:
    """The same weights each time."""
    return Model().to(dtype).eval()


def record(folder: Path, program: nn.Module, batches: Sequence[Any] = (IDS,), **options: Any) -> Path:
    """The trace of a program on batches: ids, or keywords of its forward."""
    with recording(folder, program, **options):
        for batch in batches:
            program(**(batch if isinstance(batch, dict) else {"input_ids": batch}))
    return folder


def compared(tmp_path: Path, a: nn.Module, b: nn.Module, **options: Any) -> DiffReport:
    """Both programs on the same ids, compared."""
    return diff(record(tmp_path / "a", a, **options), record(tmp_path / "b", b, **options))
