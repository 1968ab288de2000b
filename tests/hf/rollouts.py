"""Rollouts across updates of the weights as live transformers makes them: models that hand each other a cache."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from tests.checkpoint_factory import FILE


def moved(checkpoint: Path, folder: Path, seed: int) -> Path:
    """The checkpoint some updates back: every tensor a little different."""
    tensors = load_file(checkpoint / FILE)
    generator = torch.Generator().manual_seed(seed)
    drawn = {name: 1 + 0.05 * torch.randn(tensor.shape, generator=generator) for name, tensor in tensors.items()}
    save_file({n: (t.float() * drawn[n]).to(t.dtype) for n, t in tensors.items()}, folder / FILE, {"format": "pt"})
    (folder / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    return folder


def logits_by_step(
    models: Sequence[PreTrainedModel], ids: Tensor, edges: Sequence[int], *, mask: Tensor | None = None, rows: int = 0
) -> Tensor:
    """Logits [B, T, V] of steps that end at `edges`, step i on `models[i]`, with one cache for all. rows: of each step
    only so many last rows have gone through the head, in one call (0: all); the others' logits are 0.
    """
    parts: list[Tensor] = []
    cache: Any = None
    with torch.no_grad():
        for model, (first, last) in zip(models, pairwise((0, *edges)), strict=True):
            fields = {} if mask is None else _of_mask(mask, first, last)
            output = model(ids[:, first:last], past_key_values=cache, use_cache=True, logits_to_keep=rows, **fields)
            parts, cache = [*parts, _whole(output.logits, last - first)], output.past_key_values
    return torch.cat(parts, 1)


def on_old_cache(
    model: PreTrainedModel, older: PreTrainedModel, ids: Tensor, edges: Sequence[int], rows: int = 0
) -> Tensor:
    """Logits of a model for each step against a cache that `older` has filled up to the step; `rows` as above."""
    parts: list[Tensor] = []
    cache: Any = None
    with torch.no_grad():
        for first, last in pairwise((0, *edges)):
            step = ids[:, first:last]
            output = model(step, past_key_values=deepcopy(cache), use_cache=True, logits_to_keep=rows)
            parts.append(_whole(output.logits, last - first))
            cache = older(step, past_key_values=cache, use_cache=True).past_key_values
    return torch.cat(parts, 1)


def _whole(logits: Tensor, length: int) -> Tensor:
    return torch.nn.functional.pad(logits, (0, 0, length - logits.shape[1], 0))


def _of_mask(mask: Tensor, first: int, last: int) -> dict[str, Tensor]:
    positions = (mask.long().cumsum(-1) - 1).masked_fill(mask == 0, 1)
    return {"attention_mask": mask[:, :last], "position_ids": positions[:, first:last]}
