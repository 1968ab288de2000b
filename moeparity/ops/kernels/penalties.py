"""Penalties on logits of tokens that occurred. Part of the kernel of `log_probs`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from moeparity.ops.attribute import RefusedError
from moeparity.ops.kernels.text import Text
from moeparity.ops.penalties import FIRST, OUTPUT, RECIPROCAL


def penalized(x: torch.Tensor, text: Text | None, at: Mapping[str, Any]) -> torch.Tensor:
    """x [B, T, V], any float -> x with the penalties, computed in the dtype of x.

    Imitates, op by op in torch, transformers 5.23.0 RepetitionPenaltyLogitsProcessor and vLLM 0.32.0
    model_executor/layers/utils.py apply_penalties with _custom_ops.py apply_repetition_penalties_torch. Raises
    RefusedError where the tokens before, or where the prompt ends, are not known.
    """
    if text is None:
        raise RefusedError("repetition_penalty", "the tokens before are not known here. Set 1, and other penalties 0.")
    repeats, first = at["repetition_penalty"] != 1, at.get("subtracted") == FIRST
    if first:
        x = _subtracted(x, text, at)
    if repeats:
        x = _repetition(x, text, at)
    return x if first else _subtracted(x, text, at)


def _repetition(x: torch.Tensor, text: Text, at: Mapping[str, Any]) -> torch.Tensor:
    penalty, only_output = at["repetition_penalty"], at["repetition_tokens"] == OUTPUT
    occurred = _counts(x, text, _output(text, "repetition_tokens") if only_output else text.before) > 0
    if at["repetition_form"] == RECIPROCAL:
        scale = torch.where(occurred, torch.tensor(penalty, dtype=x.dtype, device=x.device), 1.0)
        return x * torch.where(x > 0, 1.0 / scale, scale)
    return torch.where(occurred, torch.where(x < 0, x * penalty, x / penalty), x)


def _subtracted(x: torch.Tensor, text: Text, at: Mapping[str, Any]) -> torch.Tensor:
    names = [name for name in ("frequency_penalty", "presence_penalty") if at[name]]
    if names:
        counts = _counts(x, text, _output(text, names[0]))
        for name in names:
            penalty = torch.tensor(at[name], dtype=x.dtype, device=x.device)
            x = x - penalty * (counts if name == "frequency_penalty" else counts > 0)
    return x


def _output(text: Text, attribute: str) -> torch.Tensor:
    if text.output is None:
        raise RefusedError(attribute, "which tokens are prompt is not known here.")
    return text.output


def _counts(x: torch.Tensor, text: Text, which: torch.Tensor) -> torch.Tensor:
    """How often each token of the vocabulary occurs before each row, int64 [B, T, V]. Only places that `which` marks
    count, and no id beyond the vocabulary.
    """
    vocabulary = x.shape[-1]
    ids = text.ids.clamp(max=vocabulary).masked_fill(~which, vocabulary)
    counts = torch.zeros(*x.shape[:-1], vocabulary + 1, dtype=torch.int64, device=x.device)
    return counts.scatter_add_(-1, ids, torch.ones_like(ids))[..., :vocabulary]
