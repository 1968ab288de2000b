"""Kernel of `all_reduce`, and how other kernels cut their operands into the ranks' parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from moeparity.numerics import orders
from moeparity.numerics.collectives.declaration import Collective
from moeparity.numerics.collectives.execute import all_reduce as over_ranks
from moeparity.numerics.collectives.execute import arch, reduce_scatter
from moeparity.numerics.order_map import Message
from moeparity.numerics.rounding import add, rounded
from moeparity.numerics.summation import sum_tree
from moeparity.ops.attribute import RefusedError
from moeparity.ops.kernels.pieces import RANKS, current, each, gathered, parts, stacked
from moeparity.ops.kernels.quantised import FileScales, file_scales
from moeparity.ops.placement import AFTER, NONE, SHARED, collective_of, cut

Gemm = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None, FileScales], torch.Tensor]
"""Of x, weight, bias, and the checkpoint's scales of the weight."""


def shared(x: torch.Tensor, pieces: int, axis: int) -> list[torch.Tensor]:
    """As `parts`, for heads, of which there may be fewer than ranks: then several ranks hold the same head."""
    heads = parts(x, min(pieces, x.shape[axis]), axis)
    return [part for part in heads for _ in range(pieces // len(heads))]


def linear(
    x: torch.Tensor, w: Mapping[str, torch.Tensor], *, way: str, at: Mapping[str, Any], gemm: Gemm
) -> torch.Tensor:
    """A GEMM as `way` says: whole, column-wise or row-wise (then the all-reduce adds the bias, unless ranks add it)."""
    weight, bias, pieces, scales = w["weight"], w.get("bias"), cut(at), file_scales(w, "weight", at)
    if pieces == 1:
        return gemm(x, weight, bias, scales)
    biases: list[torch.Tensor | None] = [None] * pieces
    if way == "column":
        biases = biases if bias is None else [*parts(bias, pieces, 0)]
        return _columns(x, weight, biases, scales.by_outputs(pieces), gemm)
    if bias is not None and at["bias"] != AFTER:
        biases = [bias / pieces] * pieces if at["bias"] == SHARED else [bias, *[None] * (pieces - 1)]
    return _rows(x, weight, biases, scales.by_inputs(pieces, x.shape[-1], at), gemm)


def _columns(
    x: torch.Tensor,
    weight: torch.Tensor,
    biases: Sequence[torch.Tensor | None],
    scales: Sequence[FileScales],
    gemm: Gemm,
) -> torch.Tensor:
    """Column-wise: x [..., K], weight [N, K] -> [..., N]; each rank computes its outputs, and these are gathered."""
    pieces = len(scales)
    operands = ((x, *of_rank) for of_rank in zip(parts(weight, pieces, 0), biases, scales, strict=False))
    return gathered(each(gemm, operands, pieces), pieces)


def _rows(
    x: torch.Tensor,
    weight: torch.Tensor,
    biases: Sequence[torch.Tensor | None],
    scales: Sequence[FileScales],
    gemm: Gemm,
) -> torch.Tensor:
    """Row-wise: x [B, T, K], weight [N, K] -> partial sums [B, ranks, T, N]; each rank has a part of K and adds its
    bias.
    """
    ranks = len(biases)
    operands = zip(parts(x, ranks, -1), parts(weight, ranks, 1), biases, scales, strict=True)
    return stacked(each(gemm, operands, ranks))


def all_reduce(
    x: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> torch.Tensor:
    """x [B, T, H], or partial sums [B, ranks, T, H] -> [B, T, H]. Raises RefusedError for what the library refuses."""
    if at.get("reduce", "later") == "later":
        return x
    partials = [part.contiguous() for part in x.unbind(RANKS)]
    total = current().reduced(partials, partial(_rounded_sum, at=at), scattered=at["sequence"] == "scattered")
    total = rounded(total, at["output"])
    return add(total, w["bias"], at["output"]) if "bias" in w and at["bias"] == AFTER else total


def _rounded_sum(partials: Sequence[torch.Tensor], at: Mapping[str, Any]) -> torch.Tensor:
    return rounded(_sum(partials, at), at["output"])


def _sum(partials: Sequence[torch.Tensor], at: Mapping[str, Any]) -> torch.Tensor:
    if at["collective"] == NONE:
        tree = orders.tree(orders.parse(at["order"]), len(partials), rooted=False)
        return sum_tree(partials.__getitem__, tree, accumulate=at["accumulate"])
    try:
        return _collected(partials, at)
    except ValueError as error:
        raise RefusedError("collective", f"{error}. Set another `collective`.") from None


def _collected(partials: Sequence[torch.Tensor], at: Mapping[str, Any]) -> torch.Tensor:
    first = partials[0]
    message = Message(first.numel(), first.element_size(), len(partials), first.shape[-1], arch(first.device))
    collective = collective_of(at, message)
    return _scattered(collective, partials) if collective.scatters else over_ranks(collective, partials)[0]


def _scattered(collective: Collective, partials: Sequence[torch.Tensor]) -> torch.Tensor:
    """Every rank's share of the tokens [B, T / ranks, H] after a reduce-scatter, put together; last shares are
    zero-padded.

    The message is laid out by destination, as by torch's functional reduce_scatter_tensor along the tokens.
    """
    ranks, (_, tokens, _) = len(partials), partials[0].shape
    shares = reduce_scatter(collective, [by_destination(x, ranks) for x in partials])
    return torch.cat(shares, dim=1)[:, :tokens].contiguous()


def by_destination(x: torch.Tensor, ranks: int) -> torch.Tensor:
    """A rank's message for a reduce-scatter of x [B, T, H]: the tokens of each destination, [ranks * B, T / ranks, H],
    zero-padded at the end.
    """
    share = -(-x.shape[1] // ranks)
    filled = torch.nn.functional.pad(x, (0, 0, 0, share * ranks - x.shape[1]))
    return torch.cat(filled.chunk(ranks, dim=1))
