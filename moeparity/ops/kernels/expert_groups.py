"""torch's grouped GEMM as `experts` calls it: on all rows, on blocks of rows, or on the rows of several steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from moeparity.numerics.blocks import in_blocks
from moeparity.numerics.gemm_forms import ALL
from moeparity.numerics.joined_steps import JoinedGemm
from moeparity.ops.kernels.linear import places_tried

Settings = Mapping[str, Any]
Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Rows [M, K] sorted by expert, weight [E, N, K] -> [M, N]."""


def all_groups(counts: torch.Tensor, at: Settings) -> Multiply:
    """One grouped GEMM, or one for each block of rows; counts [E, 1]: rows of each expert."""
    offsets = counts.flatten().cumsum(0).to(torch.int32)

    def multiply(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if at.get("rows", ALL) == ALL:
            return F.grouped_mm(rows, weight.transpose(-2, -1), offs=offsets)
        return _grouped_blocks(rows, weight.transpose(-2, -1), counts.flatten().tolist(), int(at["rows"]))

    return multiply


def groups_of_steps(counts: torch.Tensor, at: Settings) -> Multiply:
    """The grouped GEMMs of several steps, joined by expert; counts [E, steps]."""
    by_expert = counts.tolist()

    def multiply(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        parts = torch.split(rows, counts.sum(1).tolist())
        key = ("grouped", *at.items())
        products = [
            JoinedGemm(alone=_between_others, blocks=_one_group, weight=stack, bias=None, key=key).in_steps(
                part, [rows for rows in of_steps if rows]
            )
            for part, stack, of_steps in zip(parts, weight, by_expert, strict=True)
            if len(part)
        ]
        return torch.cat(products)

    return multiply


def _one_group(x: torch.Tensor, weight: torch.Tensor, _: torch.Tensor | None) -> torch.Tensor:
    """A grouped GEMM of one expert's rows alone; x [M, K], weight [N, K]."""
    offsets = torch.tensor([len(x)], dtype=torch.int32)
    return F.grouped_mm(x, weight.t()[None], offs=offsets)


def _between_others(x: torch.Tensor, weight: torch.Tensor, _: torch.Tensor | None) -> torch.Tensor:
    """As `_one_group`, but with rows of other experts before and after these."""
    before, behind = x.new_zeros(3, x.shape[1]), x.new_zeros(5, x.shape[1])
    offsets = torch.tensor([3, 3 + len(x), 8 + len(x)], dtype=torch.int32)
    return F.grouped_mm(torch.cat([before, x, behind]), weight.t().expand(3, -1, -1), offs=offsets)[3:-5]


def _grouped_blocks(rows: torch.Tensor, weight: torch.Tensor, counts: Sequence[int], size: int) -> torch.Tensor:
    """rows [M, K] sorted by expert, weight [E, K, N] -> [M, N]: a grouped GEMM for each block of one expert's rows."""
    offsets = torch.tensor([size], dtype=torch.int32, device=rows.device)
    key = ("grouped", weight.shape[1:], weight.stride())

    def of_expert(expert: int, span: torch.Tensor) -> torch.Tensor:
        stack = weight[expert : expert + 1]
        return in_blocks(span, size, lambda block: F.grouped_mm(block, stack, offs=offsets), key=key)

    spans = torch.split(rows, list(counts))
    with places_tried():
        return torch.cat([of_expert(expert, span) for expert, span in enumerate(spans) if len(span)])
