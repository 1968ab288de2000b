"""Kernels of `experts` and `combine`.

The weights are the two stacks transformers holds in memory: `gate_up` [E, 2I, H], gate rows first; `down` [E, H, I].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from moeparity.numerics import orders
from moeparity.numerics.rounding import linear, product, rounded, wide, working
from moeparity.numerics.summation import sum_tree

Project = Callable[[torch.Tensor, torch.Tensor, torch.dtype, torch.dtype], torch.Tensor]


def experts(
    x: torch.Tensor,
    ids: torch.Tensor,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
) -> torch.Tensor:
    """x [B, T, H], ids [B, T, K] -> rows [B, T, K, H], the unweighted output of each token's slots."""
    x_NH, ids_NK = x.reshape(-1, x.shape[-1]), ids.reshape(-1, ids.shape[-1])
    rows = (_grouped if at["implementation"] == "grouped" else _loop)(x_NH, ids_NK, w, at)
    return rows.view(*ids.shape, x.shape[-1])


def _loop(x: torch.Tensor, ids: torch.Tensor, w: Mapping[str, torch.Tensor], at: Mapping[str, Any]) -> torch.Tensor:
    """One GEMM per expert hit, in ascending id; inside an expert, rows by slot, then token."""
    n, k = ids.shape
    rows = torch.empty(n * k, x.shape[-1], dtype=at["output"], device=x.device)
    by_expert = ids.t().reshape(-1).sort(stable=True)
    tokens = by_expert.indices % n
    places = tokens * k + by_expert.indices // n
    counts = torch.bincount(by_expert.values, minlength=w["down"].shape[0]).tolist()
    start = 0
    for expert, count in enumerate(counts):
        if count:
            here = slice(start, start + count)
            hidden = _swiglu(x.index_select(0, tokens[here]), w["gate_up"][expert], at, _project)
            rows.index_copy_(0, places[here], _project(hidden, w["down"][expert], at["product"], at["output"]))
            start += count
    return rows


def _grouped(x: torch.Tensor, ids: torch.Tensor, w: Mapping[str, torch.Tensor], at: Mapping[str, Any]) -> torch.Tensor:
    """torch's grouped GEMM over tokens sorted by expert, then back to slot order."""
    k = ids.shape[1]
    by_expert = torch.sort(ids.reshape(-1))
    counts = torch.bincount(by_expert.values, minlength=w["down"].shape[0])
    offsets = counts.cumsum(0).to(torch.int32)

    def project(rows: torch.Tensor, weight: torch.Tensor, inputs: torch.dtype, output: torch.dtype) -> torch.Tensor:
        rows, weight = rounded(rows, inputs), rounded(weight, inputs).transpose(-2, -1)
        if inputs == output:
            return F.grouped_mm(rows, weight, offs=offsets)
        return rounded(F.grouped_mm(wide(rows), wide(weight), offs=offsets), output)

    hidden = _swiglu(x[by_expert.indices // k], w["gate_up"], at, project)
    sorted_rows = project(hidden, w["down"], at["product"], at["output"])
    inverse = torch.empty_like(by_expert.indices)
    inverse[by_expert.indices] = torch.arange(inverse.numel(), device=x.device)
    return sorted_rows[inverse]


def _project(x: torch.Tensor, weight: torch.Tensor, inputs: torch.dtype, output: torch.dtype) -> torch.Tensor:
    return linear(x, weight, None, inputs=inputs, output=output)


def _swiglu(x: torch.Tensor, gate_up: torch.Tensor, at: Mapping[str, Any], project: Project) -> torch.Tensor:
    """silu(gate) * up of rows x [M, H] with gate_up [2I, H] or [E, 2I, H]."""
    dtype = at["projections"]
    if at["gate_up"] == "split":
        gate, up = (project(x, half, dtype, dtype) for half in gate_up.chunk(2, dim=-2))
    else:
        gate, up = project(x, gate_up, dtype, dtype).chunk(2, dim=-1)
    return swiglu(gate, up, activation=at["activation"], output=at["product"])


def swiglu(gate: torch.Tensor, up: torch.Tensor, *, activation: torch.dtype, output: torch.dtype) -> torch.Tensor:
    """silu(gate) rounded to `activation`, times up, rounded to `output`."""
    silu = F.silu(gate.to(gate.dtype if gate.dtype == activation else working(gate.dtype, activation)))
    return product(rounded(silu, activation), up, output)


def combine(
    rows: torch.Tensor,
    ids: torch.Tensor | None,
    weights: torch.Tensor,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
) -> torch.Tensor:
    """rows [B, T, K, H], ids and weights [B, T, K] -> [B, T, H]; ids are read for `leaves: expert` only."""
    pick, weights = _leaves(rows, ids, weights, at["leaves"])
    slots = range(rows.shape[-2])
    if at["order"] == orders.NATIVE and at["accumulate"] == torch.float32:
        stacked = rows if at["leaves"] == "slot" else torch.stack([pick(i) for i in slots], dim=-2)
        return _native_sum(product(stacked, weights.unsqueeze(-1), at["weighted"]), at["output"])

    # One leaf at a time: all weighted rows at once are K times the memory, and page faults cost more than the sum.
    def leaf(i: int) -> torch.Tensor:
        return product(pick(i), weight(i), at["weighted"])

    def weight(i: int) -> torch.Tensor:
        return weights[..., i, None]

    order = orders.parse("sequential" if at["order"] == orders.NATIVE else at["order"])
    tree = orders.tree(order, len(slots), rooted=True)
    contracted = {"leaf": pick, "times": weight} if order.fma else {"leaf": leaf}
    return rounded(sum_tree(**contracted, tree=tree, accumulate=at["accumulate"], start=0.0), at["output"])


def _leaves(
    rows: torch.Tensor, ids: torch.Tensor | None, weights: torch.Tensor, leaves: str
) -> tuple[Callable[[int], torch.Tensor], torch.Tensor]:
    """Each token's i-th row [B, T, H] as a function of i, by slot or by expert id, and the weights in that order."""
    if leaves == "slot":
        return lambda i: rows[..., i, :], weights
    assert ids is not None
    by_expert = ids.argsort(dim=-1)
    starts = torch.arange(0, ids.numel(), ids.shape[-1], device=ids.device).view(*ids.shape[:-1], 1)
    places, flat = starts + by_expert, rows.flatten(0, -2)
    # index_select moves whole rows; gather would go element by element, and take longer than the GEMMs.
    return lambda i: flat.index_select(0, places[..., i].flatten()).view_as(rows[..., 0, :]), weights.gather(
        -1, by_expert
    )


def _native_sum(weighted: torch.Tensor, output: torch.dtype) -> torch.Tensor:
    """torch's sum over the slots; of 16-bit leaves it accumulates in fp32 and rounds once, to their own dtype."""
    if weighted.dtype != output or output == torch.float64:
        weighted = weighted.to(torch.float32)
    flat = weighted.flatten(0, 1).sum(dim=1)
    return rounded(flat, output).view(*weighted.shape[:2], -1)
