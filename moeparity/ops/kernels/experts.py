"""Kernel of `experts`, and the SwiGLU that dense MLPs share with it.

The weights are the two stacks transformers holds in memory: `gate_up` [E, 2I, H], gate rows first; `down` [E, H, I].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from moeparity.numerics.rounding import product, rounded, tf32, wide, working
from moeparity.ops.experts import ACTIVATION, EPILOGUE, INPUT
from moeparity.ops.kernels.linear import gemm_of
from moeparity.ops.kernels.placement import RANKS, gathered, parts
from moeparity.ops.linear import COLUMN
from moeparity.ops.placement import cut

Project = Callable[[torch.Tensor, torch.Tensor, torch.dtype, torch.dtype], torch.Tensor]
Settings = Mapping[str, Any]
Scores = torch.Tensor | None
Stacks = Mapping[str, Sequence[torch.Tensor]]
"""Both weights, whole or as the ranks hold them whose activations are gathered before the down projection."""


def experts(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor | None,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Settings,
) -> torch.Tensor:
    """x [B, T, H], ids [B, T, K] -> rows [B, T, K, H], the output of each token's slots.

    weights [B, T, K] are given where a row meets its own here (`score_site`). Where each expert is cut over ranks
    row-wise, the result are their parts of the rows, [B, ranks, T, K, H].
    """
    run, pieces = _grouped if at["implementation"] == "grouped" else _loop, cut(at)
    x_NH, ids_NK = x.reshape(-1, x.shape[-1]), ids.reshape(-1, ids.shape[-1])
    # A column of one score for each row of the result.
    scores = None if weights is None else weights.reshape(-1, 1)
    if pieces == 1:
        whole = {name: [stack] for name, stack in w.items()}
        return run(x_NH, ids_NK, scores, whole, at).view(*ids.shape, x.shape[-1])
    halves = (parts(half, pieces, 1) for half in w["gate_up"].chunk(2, dim=-2))
    gate_up = [torch.cat(both, dim=1) for both in zip(*halves, strict=True)]
    if at["parallel"] == COLUMN:
        held = {"gate_up": gate_up, "down": parts(w["down"], pieces, 1)}
        return run(x_NH, ids_NK, scores, held, at).view(*ids.shape, x.shape[-1])
    at, both = {**at, "output": at["partial"]}, zip(gate_up, parts(w["down"], pieces, 2), strict=True)
    each = [run(x_NH, ids_NK, scores, {"gate_up": [up], "down": [down]}, at) for up, down in both]
    return torch.stack([rows.view(*ids.shape, x.shape[-1]) for rows in each], dim=RANKS)


def _loop(x: torch.Tensor, ids: torch.Tensor, scores: Scores, w: Stacks, at: Settings) -> torch.Tensor:
    """One GEMM per expert hit, in ascending id; inside an expert, rows by slot, then token."""
    n, k = ids.shape
    rows = torch.empty(n * k, x.shape[-1], dtype=at["output"], device=x.device)
    by_expert = ids.t().reshape(-1).sort(stable=True)
    tokens = by_expert.indices % n
    places = tokens * k + by_expert.indices // n
    counts = torch.bincount(by_expert.values, minlength=w["down"][0].shape[0]).tolist()
    gemm, start = gemm_of(at), 0

    def project(x: torch.Tensor, weight: torch.Tensor, inputs: torch.dtype, output: torch.dtype) -> torch.Tensor:
        return gemm(x, weight, None, inputs=inputs, output=output)

    for expert, count in enumerate(counts):
        if count:
            here = slice(start, start + count)
            scored = None if scores is None else scores.index_select(0, places[here])
            own = {name: [stack[expert] for stack in held] for name, held in w.items()}
            made = _mlp(x.index_select(0, tokens[here]), scored, own, at, project)
            rows.index_copy_(0, places[here], made)
            start += count
    return rows


def _grouped(x: torch.Tensor, ids: torch.Tensor, scores: Scores, w: Stacks, at: Settings) -> torch.Tensor:
    """torch's grouped GEMM over tokens sorted by expert, then back to slot order."""
    k = ids.shape[1]
    by_expert = torch.sort(ids.reshape(-1))
    counts = torch.bincount(by_expert.values, minlength=w["down"][0].shape[0])
    offsets = counts.cumsum(0).to(torch.int32)

    def project(rows: torch.Tensor, weight: torch.Tensor, inputs: torch.dtype, output: torch.dtype) -> torch.Tensor:
        rows, weight = rounded(rows, inputs), rounded(weight, inputs)
        if at["tf32"] == "yes":
            rows, weight = tf32(rows), tf32(weight)
        weight = weight.transpose(-2, -1)
        if inputs == output:
            return F.grouped_mm(rows, weight, offs=offsets)
        return rounded(F.grouped_mm(wide(rows), wide(weight), offs=offsets), output)

    scored = None if scores is None else scores[by_expert.indices]
    sorted_rows = _mlp(x[by_expert.indices // k], scored, w, at, project)
    inverse = torch.empty_like(by_expert.indices)
    inverse[by_expert.indices] = torch.arange(inverse.numel(), device=x.device)
    return sorted_rows[inverse]


def _mlp(x: torch.Tensor, scores: Scores, w: Stacks, at: Settings, project: Project) -> torch.Tensor:
    """Rows [M, H] of x [M, H], with scores [M, 1] where they are not left to the combine."""
    where = at["score_site"]
    if scores is not None and where == INPUT:
        x = product(x, scores, at["scored"])
    hidden, inputs = gathered([_swiglu(x, own, at, project) for own in w["gate_up"]]), at["product"]
    if scores is not None and where == ACTIVATION:
        hidden, inputs = product(hidden, scores, at["scored"]), at["scored"]

    def down(output: torch.dtype) -> torch.Tensor:
        return gathered([project(hidden, own, inputs, output) for own in w["down"]])

    if scores is not None and where == EPILOGUE:
        return product(down(working(inputs, at["output"])), scores, at["output"])
    return down(at["output"])


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
