"""Kernel of `all_reduce`, and how the other kernels cut what they are given into the ranks' parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from moeparity.numerics import orders
from moeparity.numerics.collectives import nccl
from moeparity.numerics.collectives.declaration import Collective
from moeparity.numerics.collectives.execute import all_reduce as over_ranks
from moeparity.numerics.collectives.execute import reduce_scatter
from moeparity.numerics.collectives.registry import find, scattering
from moeparity.numerics.order_map import Message
from moeparity.numerics.rounding import add, rounded
from moeparity.numerics.summation import sum_tree
from moeparity.ops.attribute import RefusedError
from moeparity.ops.kernels.pieces import RANKS, current, each, gathered, stacked
from moeparity.ops.placement import AFTER, NONE, SHARED, cut

Gemm = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


def parts(x: torch.Tensor, pieces: int, axis: int) -> list[torch.Tensor]:
    """What each rank holds of x, cut along an axis as torch.chunk cuts; freshly allocated, axes in memory as in x."""
    if pieces == 1:
        return [x]
    strides = x.stride()
    order = sorted(range(x.dim()), key=lambda a: -strides[a])
    back = [order.index(a) for a in range(x.dim())]
    shares = (part.permute(order).clone(memory_format=torch.contiguous_format) for part in x.chunk(pieces, dim=axis))
    return [part.permute(back) for part in shares]


def shared(x: torch.Tensor, pieces: int, axis: int) -> list[torch.Tensor]:
    """As `parts`, of heads that may be fewer than the ranks: then several ranks hold the same head."""
    heads = parts(x, min(pieces, x.shape[axis]), axis)
    return [part for part in heads for _ in range(pieces // len(heads))]


def columns(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, pieces: int, gemm: Gemm) -> torch.Tensor:
    """x [..., K], weight [N, K] -> [..., N]: each rank computes its outputs, which are gathered."""
    biases = [None] * pieces if bias is None else parts(bias, pieces, 0)
    rows = parts(weight, pieces, 0)
    return gathered(each(gemm, ((x, w, b) for w, b in zip(rows, biases, strict=False)), pieces), pieces)


def rows(x: torch.Tensor, weight: torch.Tensor, biases: Sequence[torch.Tensor | None], gemm: Gemm) -> torch.Tensor:
    """x [B, T, K], weight [N, K] -> partial sums [B, ranks, T, N]: each rank has its share of K, and adds its bias."""
    ranks = len(biases)
    operands = zip(parts(x, ranks, -1), parts(weight, ranks, 1), biases, strict=True)
    return stacked(each(gemm, operands, ranks))


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, way: str, at: Mapping[str, Any], gemm: Gemm
) -> torch.Tensor:
    """A GEMM as it is cut: whole, column-wise, or row-wise (the bias is then the all-reduce's, unless ranks add it)."""
    pieces = cut(at)
    if pieces == 1:
        return gemm(x, weight, bias)
    if way == "column":
        return columns(x, weight, bias, pieces, gemm)
    if bias is None or at["bias"] == AFTER:
        return rows(x, weight, [None] * pieces, gemm)
    return rows(x, weight, [bias / pieces] * pieces if at["bias"] == SHARED else [bias, *[None] * (pieces - 1)], gemm)


def all_reduce(
    x: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> torch.Tensor:
    """x [B, T, H], or in partial sums [B, ranks, T, H] -> [B, T, H]. Raises RefusedError for what a library refuses."""
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
    elements, width = first.numel(), first.shape[-1]
    collective = find(at["collective"], Message(elements, first.element_size(), len(partials), width, _arch(first)))
    if at["sequence"] == "whole":
        return over_ranks(_as_set(collective, at, len(partials)), partials)[0]
    return _scattered(scattering(collective), partials)


def _as_set(collective: Collective, at: Mapping[str, Any], ranks: int) -> Collective:
    """A collective of NCCL's over the channels and nodes of a node's attributes; any other as it is."""
    return nccl.as_set(
        collective,
        channels=at.get("channels", 1),
        protocol=at.get("protocol", "simple"),
        node=at.get("node", 0),
        pattern=at.get("pattern", "balanced_tree"),
        ranks=ranks,
    )


def _scattered(collective: Collective | None, partials: Sequence[torch.Tensor]) -> torch.Tensor:
    """Every rank's share of the tokens [B, T / ranks, H], put together again; the last shares are filled up with zeros.

    The message lies by destination, as torch's functional reduce_scatter_tensor along the tokens lays it.
    """
    if collective is None:
        raise ValueError("no reduce-scatter is known for this message")
    ranks, (_, tokens, _) = len(partials), partials[0].shape
    shares = reduce_scatter(collective, [by_destination(x, ranks) for x in partials])
    return torch.cat(shares, dim=1)[:, :tokens].contiguous()


def by_destination(x: torch.Tensor, ranks: int) -> torch.Tensor:
    """A rank's message of a reduce-scatter, of x [B, T, H]: the tokens of each destination, [ranks * B, T / ranks, H],
    the last ones filled up with zeros.
    """
    share = -(-x.shape[1] // ranks)
    filled = torch.nn.functional.pad(x, (0, 0, 0, share * ranks - x.shape[1]))
    return torch.cat(filled.chunk(ranks, dim=1))


def _arch(x: torch.Tensor) -> str | None:
    """`sm90`, as selection tables name the GPU; None on a CPU."""
    if x.device.type != "cuda":
        return None
    major, minor = torch.cuda.get_device_capability(x.device)
    return f"sm{major}{minor}"
