"""Kernel of `combine`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from moeparity.numerics import orders
from moeparity.numerics.rounding import add, product, rounded, stored, wide
from moeparity.numerics.summation import sum_tree
from moeparity.ops.combine import ADD, FIRST, LAST, SLOT
from moeparity.ops.kernels.pieces import RANKS, each, stacked

Settings = Mapping[str, Any]
Leaf = Callable[[int], torch.Tensor]
_WHOLE = 4
"""The number of axes of rows that are not partial sums."""


def combine(
    rows: torch.Tensor,
    ids: torch.Tensor | None,
    weights: torch.Tensor | None,
    shared: torch.Tensor | None = None,
    *,
    w: Mapping[str, torch.Tensor],
    p: Settings,
    at: Settings,
) -> torch.Tensor:
    """rows [B, T, K, H], ids and weights [B, T, K], shared [B, T, H] -> [B, T, H].

    ids are needed for `leaves: expert` and for ranks, weights if rows have not been multiplied by theirs, shared if it
    is added within this sum. Rows in partial sums [B, ranks, T, K, H], or experts on several ranks, give partial sums
    [B, ranks, T, H].
    """
    weights = weights if p.get("weighs", True) else None
    # A token's only slot has one partial sum where these go by slots, on however many ranks its expert may lie.
    if rows.dim() == _WHOLE and (at["expert"] == 1 or _partials(ids, at) == 1):
        return _combined(rows, ids, weights, shared, p, at)
    at = {**at, "output": at["partial"]}
    rows_by_rank = rows.unbind(RANKS) if at["expert"] == 1 else _own_rows(rows, ids, p, at)
    operands = ((rank_rows, ids, weights, None, p, at) for rank_rows in rows_by_rank)
    return stacked(each(_combined, operands, rows.shape[RANKS] if at["expert"] == 1 else _partials(ids, at)))


def _combined(
    rows: torch.Tensor,
    ids: torch.Tensor | None,
    weights: torch.Tensor | None,
    shared: torch.Tensor | None,
    p: Settings,
    at: Settings,
) -> torch.Tensor:
    """The sum over the slots, with what happens before and after its last rounding."""
    way, later = at.get("shared", ADD), at["scaling"]
    if way == SLOT:
        assert shared is not None
        rows, ids, weights = _with_shared(rows, ids, weights, shared, p, 1.0 if later == "weights" else 1 / p["scale"])
    # If more is added in the accumulator, torch's own sum must not be rounded to the output dtype.
    accumulated = at["accumulate"] if way == LAST or later == "accumulator" else at["output"]
    total = _sum(rows, ids, weights, shared if way == FIRST else None, {**at, "output": accumulated})
    if way == LAST:
        assert shared is not None
        total = add(total, shared, at["accumulate"])
    if later == "accumulator":
        total = wide(total) * p["scale"]
    total = rounded(total, at["output"])
    # What the kernel stored is scaled by another one, which rounds to nearest.
    return rounded(wide(total) * p["scale"], stored(at["output"])) if later == "output" else total


def _sum(
    rows: torch.Tensor, ids: torch.Tensor | None, weights: torch.Tensor | None, start: torch.Tensor | None, at: Settings
) -> torch.Tensor:
    pick, ordered = _leaves(rows, ids, weights, at["leaves"])
    slots = range(rows.shape[-2])
    if at["order"] == orders.NATIVE and at["accumulate"] == torch.float32:
        stacked = rows if at["leaves"] == "slot" else torch.stack([pick(i) for i in slots], dim=-2)
        if ordered is not None:
            stacked = product(stacked, ordered.unsqueeze(-1), at["weighted"])
        return _native_sum(stacked, at["output"])
    order = orders.parse("sequential" if at["order"] == orders.NATIVE else at["order"])
    leaves = {"leaf": pick} if ordered is None else _products(pick, ordered, order, at)
    tree = orders.tree(order, len(slots), rooted=True)
    total = sum_tree(**leaves, tree=tree, accumulate=at["accumulate"], start=0.0 if start is None else start)
    return rounded(total, at["output"])


def _products(pick: Leaf, weights: torch.Tensor, order: orders.Order, at: Settings) -> dict[str, Leaf]:
    """The weighted rows, one at a time, since all together would take K times the memory, and page faults cost more
    than the additions. If the order contracts products into additions: both factors of each row.
    """

    def weight(i: int) -> torch.Tensor:
        return weights[..., i, None]

    if order.fma:
        return {"leaf": pick, "times": weight}
    return {"leaf": lambda i: product(pick(i), weight(i), at["weighted"])}


def _with_shared(
    rows: torch.Tensor,
    ids: torch.Tensor | None,
    weights: torch.Tensor | None,
    shared: torch.Tensor,
    p: Settings,
    weight: float,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """The shared expert's output as one more slot, after all others, also by expert id."""
    column = rows[..., :1, 0]
    if weights is None:
        shared = rounded(wide(shared) * weight, shared.dtype)
    else:
        weights = torch.cat((weights, torch.full_like(column, weight, dtype=weights.dtype)), dim=-1)
    ids = None if ids is None else torch.cat((ids, torch.full_like(column, p["experts"], dtype=ids.dtype)), dim=-1)
    return torch.cat((rows, shared.unsqueeze(-2)), dim=-2), ids, weights


def _own_rows(rows: torch.Tensor, ids: torch.Tensor | None, p: Settings, at: Settings) -> Iterator[torch.Tensor]:
    """For each partial sum, the rows of its rank, with zeros in the other slots, which change no sum."""
    assert ids is not None
    owner = ids // (p["experts"] // at["expert"])
    index = owner if at["partials"] == "rank" else _first_slots(owner)
    for i in range(_partials(ids, at)):
        yield torch.where((index == i).unsqueeze(-1), rows, torch.zeros((), dtype=rows.dtype, device=rows.device))


def _partials(ids: torch.Tensor | None, at: Settings) -> int:
    """How many partial sums experts on ranks give; ids [B, T, K]."""
    assert ids is not None
    return int(at["expert"]) if at["partials"] == "rank" else min(int(at["expert"]), ids.shape[-1])


def _first_slots(owner: torch.Tensor) -> torch.Tensor:
    """owner [B, T, K], the rank of each slot -> for each slot, how many other ranks have a slot before its rank's
    first one.
    """
    same = owner.unsqueeze(-1) == owner.unsqueeze(-2)
    first = same.to(torch.int64).argmax(-1)
    leads = first == torch.arange(owner.shape[-1], device=owner.device)
    return (leads.to(torch.int64).cumsum(-1) - 1).gather(-1, first)


def _leaves(
    rows: torch.Tensor, ids: torch.Tensor | None, weights: torch.Tensor | None, leaves: str
) -> tuple[Leaf, torch.Tensor | None]:
    """A function i -> each token's i-th row [B, T, H], by slot or by expert id; and the weights in that order."""
    if leaves == "slot":
        return lambda i: rows[..., i, :], weights
    assert ids is not None
    by_expert = ids.argsort(dim=-1)
    starts = torch.arange(0, ids.numel(), ids.shape[-1], device=ids.device).view(*ids.shape[:-1], 1)
    places, flat = starts + by_expert, rows.flatten(0, -2)

    def pick(i: int) -> torch.Tensor:
        # index_select moves whole rows; gather goes element by element and would take longer than the GEMMs.
        return flat.index_select(0, places[..., i].flatten()).view_as(rows[..., 0, :])

    return pick, None if weights is None else weights.gather(-1, by_expert)


def _native_sum(weighted: torch.Tensor, output: torch.dtype) -> torch.Tensor:
    """torch's sum over the slots; for 16-bit leaves it accumulates in fp32 and rounds once, to their dtype."""
    if weighted.dtype != output or output == torch.float64:
        weighted = weighted.to(torch.float32)
    flat = weighted.flatten(0, 1).sum(dim=1)
    return rounded(flat, output).view(*weighted.shape[:2], -1)
