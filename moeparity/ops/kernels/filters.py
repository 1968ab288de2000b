"""What a sampler leaves out of a distribution: top-k, top-p and min-p on logits. Part of the kernel of `log_probs`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from moeparity.ops.filters import AFTER_TOP_P, FIRST_TIED, LOGITS, SORTS_ALL


def filtered(x: torch.Tensor, at: Mapping[str, Any]) -> torch.Tensor:
    """x [..., V], any float -> x with -inf at the tokens that the filters leave out, computed in the dtype of x.

    Imitates, op by op in torch, transformers 5.23.0 generation/logits_process.py (TopKLogitsWarper, TopPLogitsWarper,
    MinPLogitsWarper) and vLLM 0.32.0 v1/sample/ops/topk_topp_sampler.py, apply_top_k_top_p_pytorch, which give the same
    bits where 1 - top_p has them.
    """
    last = at.get("min_p_place") == AFTER_TOP_P
    if at["min_p"] and not last:
        x = _min_p(x, at)
    logits = _top_k(x, int(at["top_k"]), at["top_k_ties"]) if at["top_k"] else x
    if at["top_p"] != 1:
        logits = _top_p(logits, x if at.get("sorted") == SORTS_ALL else logits, at)
    return _min_p(logits, at) if at["min_p"] and last else logits


def _top_k(x: torch.Tensor, k: int, ties: str) -> torch.Tensor:
    k = min(k, x.shape[-1])
    least = x.topk(k, dim=-1).values[..., -1:]
    if ties == FIRST_TIED:
        tied = x == least
        room = k - (x > least).sum(-1, keepdim=True)
        return x.masked_fill((x < least) | (tied & (tied.cumsum(-1) > room)), -math.inf)
    return x.masked_fill(x < least, -math.inf)


def _top_p(x: torch.Tensor, sorted_by: torch.Tensor, at: Mapping[str, Any]) -> torch.Tensor:
    ids = sorted_by.sort(dim=-1, descending=False).indices
    left_out = x.gather(-1, ids).softmax(-1).cumsum(-1) <= _bound(at["top_p"], at["kept_mass"])
    left_out[..., -1] = False
    return x.masked_fill(left_out.scatter(-1, ids, left_out), -math.inf)


def _bound(top_p: float, dtype: torch.dtype) -> float:
    """1 - top_p of numbers in `dtype`."""
    whole, mass = (torch.tensor(number, dtype=dtype) for number in (1.0, top_p))
    return float(whole - mass)


def _min_p(x: torch.Tensor, at: Mapping[str, Any]) -> torch.Tensor:
    if at["min_p_form"] == LOGITS:
        bound = torch.tensor(at["min_p"], dtype=x.dtype, device=x.device).log()
        return x.masked_fill(x < x.amax(-1, keepdim=True) + bound, -math.inf)
    probabilities = x.softmax(-1)
    left_out = probabilities < at["min_p"] * probabilities.amax(-1, keepdim=True)
    return x.masked_fill(left_out.scatter(-1, probabilities.topk(1, dim=-1).indices, False), -math.inf)
