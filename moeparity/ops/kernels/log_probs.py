"""Kernel of `log_probs`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from moeparity.numerics import orders
from moeparity.numerics.collectives.execute import all_reduce
from moeparity.numerics.collectives.execute import log_softmax as over_vocabulary
from moeparity.numerics.collectives.registry import COLLECTIVES
from moeparity.numerics.rounding import rounded, working
from moeparity.numerics.summation import sum_axis, sum_tree
from moeparity.ops.attribute import RefusedError
from moeparity.ops.filters import truncates
from moeparity.ops.kernels.filters import filtered
from moeparity.ops.kernels.penalties import penalized
from moeparity.ops.kernels.pieces import current, gathered, parts
from moeparity.ops.kernels.requests import biased, restricted
from moeparity.ops.kernels.text import Text
from moeparity.ops.log_probs import (
    DIVIDE,
    GATHERED,
    LOG_OF_SOFTMAX,
    LOG_SOFTMAX,
    MINUS_LOGSUMEXP,
    RECIPROCAL,
    SHIFTED,
    UNROUNDED,
)
from moeparity.ops.penalties import penalizes
from moeparity.ops.placement import NONE, cut
from moeparity.ops.requests import APPLIED, FIRST, LAST, LOGIT_BIAS, applied, masks

Sum = Callable[[torch.Tensor], torch.Tensor]
"""A sum over the last axis, which is kept."""


def log_probs(
    x: torch.Tensor,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
    text: Text | None = None,
) -> torch.Tensor:
    """x [B, T, V] -> log-probabilities [B, T, V]. `unrounded`: the logits, penalized, divided by the temperature and
    filtered in fp64. Where filters leave a token out, both are -inf. text: the tokens before each row, for penalties.

    Raises RefusedError for an order of another number of logits, and for ranks without any logits.
    """
    x = processed(x, at, text)
    if at["form"] == UNROUNDED:
        return x
    output = at["output"]
    # torch's 16-bit kernel is not used: on CUDA it computes in fp32 as here, but on CPU it rounds the sum and its log.
    scores = rounded(_formula(x.to(working(x.dtype, output)), at), output)
    if at["form"] != LOG_OF_SOFTMAX:
        return scores
    # After the rounding, since fp32's lowest finite number is -inf in 16 bits.
    clamped = scores.clamp(min=torch.finfo(output).min)
    return clamped.masked_fill(x == -math.inf, -math.inf) if truncates(at) or masks(at) else clamped


def processed(x: torch.Tensor, at: Mapping[str, Any], text: Text | None = None) -> torch.Tensor:
    """The logits x [B, T, V] as they are sampled from: capped, biased, restricted, penalized, divided by the
    temperature, -inf where left out.

    Each step has the dtype that the one before leaves; where no engine's form is imitated, all that is done behind the
    cap is done in fp64.
    """
    temperature = at["temperature"]
    rounds = at["form"] != UNROUNDED
    x = _capped(x, at["soft_cap"], at["capped"]) if at["soft_cap"] else x
    x = rounded(x, at["inputs"]) if rounds else x
    if applied(at) or penalizes(at):
        x = _changed(x if rounds else x.double(), text, at)
    if temperature != 1:
        x = _tempered(x, temperature, at) if rounds else x.double() / temperature
    return filtered(x if rounds else x.double(), at) if truncates(at) else x


def _capped(x: torch.Tensor, cap: float, dtype: torch.dtype) -> torch.Tensor:
    """Logits x pressed smoothly between -cap and cap: cap * tanh(x / cap), each step rounded to `dtype`.

    Imitates final_logit_softcapping of transformers 5.23.0, and vLLM 0.32.0 model_executor/layers/logits_processor.py,
    both in the head's dtype; SGLang 0.5.23 has fp32.
    """
    return (rounded(x, dtype) / cap).tanh() * cap


def _changed(x: torch.Tensor, text: Text | None, at: Mapping[str, Any]) -> torch.Tensor:
    """x with what requests ask for by ids, and with penalties."""
    place = at.get("bias_place") if at[LOGIT_BIAS] == APPLIED else None
    if place == FIRST:
        x = biased(x, text, at)
    if masks(at):
        x = restricted(x, text, at)
    if penalizes(at):
        x = penalized(x, text, at)
    return biased(x, text, at) if place == LAST else x


def _tempered(x: torch.Tensor, temperature: float, at: Mapping[str, Any]) -> torch.Tensor:
    scaled = at["scaled"]
    wide = x.to(working(x.dtype, scaled))
    divisor = torch.tensor(temperature, dtype=wide.dtype, device=x.device)
    if at["division"] == DIVIDE:
        return rounded(wide / divisor, scaled)
    # Computed in fp64 of the temperature in the computation's dtype, or as it is given, then rounded to that dtype.
    exact = divisor.double() if at["division"] == RECIPROCAL else divisor.new_tensor(temperature, dtype=torch.float64)
    return rounded(wide * exact.reciprocal().to(wide.dtype), scaled)


def _formula(x: torch.Tensor, at: Mapping[str, Any]) -> torch.Tensor:
    form = at["form"]
    if form == LOG_SOFTMAX:
        return x.log_softmax(-1)
    if form == LOG_OF_SOFTMAX:
        return x.softmax(-1).log()
    total = _sum(at["order"])
    if form == SHIFTED and not at["block"]:
        return _over_vocabulary(x, total, at)
    if form == MINUS_LOGSUMEXP and at["order"] == orders.NATIVE and not at["block"]:
        return x - x.logsumexp(-1, keepdim=True)
    maximum, added = _online(x, at["block"] or x.shape[-1], total)
    return x - maximum - added.log() if form == SHIFTED else x - (added.log() + maximum)


def _over_vocabulary(x: torch.Tensor, total: Sum, at: Mapping[str, Any]) -> torch.Tensor:
    """(x - max) - log sum, with maximum and sum taken over the ranks' parts of the vocabulary."""
    ranks = 1 if at.get("parallel") == GATHERED else cut(at)
    vocabularies = parts(x, ranks, -1)
    if len(vocabularies) < ranks:
        raise RefusedError("tensor", f"{x.shape[-1]} logits, cut over {ranks} ranks, leave some without any.")
    return gathered(over_vocabulary(vocabularies, total, lambda sums: _reduced(sums, at)), ranks)


def _online(x: torch.Tensor, size: int, total: Sum) -> tuple[torch.Tensor, torch.Tensor]:
    """Maximum and sum of exponentials [B, T, 1] of x [B, T, V], one block of the vocabulary after the other.

    Products and sums are rounded separately; whether a compiler contracts them is not known.
    """
    first, *others = torch.split(x, size, -1)
    maximum = first.amax(-1, keepdim=True)
    added = total((first - maximum).exp())
    for block in others:
        before, maximum = maximum, torch.maximum(maximum, block.amax(-1, keepdim=True))
        added = (before - maximum).exp() * added + total((block - maximum).exp())
    return maximum, added


def _sum(order: str) -> Sum:
    """The sum over the last axis, which is kept, in the order `order`."""
    if order == orders.NATIVE:
        return lambda x: x.sum(-1, keepdim=True)
    return lambda x: _written_out(x, orders.parse(order))


def _written_out(x: torch.Tensor, order: orders.Order) -> torch.Tensor:
    try:
        return sum_axis(x, order, -1, accumulate=x.dtype).unsqueeze(-1)
    except orders.OrderError as error:
        raise RefusedError("order", f"{order}: {error}. Set another `order`.") from None


def _reduced(sums: Sequence[torch.Tensor], at: Mapping[str, Any]) -> Sequence[torch.Tensor]:
    """The ranks' sums [B, T, 1], added up; a list of what every rank gets."""
    if len(sums) == 1:
        return sums
    return [current().reduced(sums, partial(_added, at=at), scattered=False)] * len(sums)


def _added(sums: Sequence[torch.Tensor], at: Mapping[str, Any]) -> torch.Tensor:
    if at["collective"] != NONE:
        return all_reduce(COLLECTIVES[at["collective"]], sums)[0]
    tree = orders.tree(orders.parse(at["ranks"]), len(sums), rooted=False)
    return sum_tree(sums.__getitem__, tree, accumulate=sums[0].dtype)
