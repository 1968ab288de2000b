"""Kernel of `experts`, and the SwiGLU that dense MLPs share with it.

The weights are the stacks transformers holds in memory: `gate_up` [E, 2I, H], gate rows first unless they alternate
with those of up, and `down` [E, H, I]; with biases also `gate_up_bias` [E, 2I], laid out alike, and `down_bias` [E, H].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from moeparity.numerics.blocks import in_blocks
from moeparity.numerics.cuda import fast_product
from moeparity.numerics.gemm_forms import ALL
from moeparity.numerics.orders import NATIVE
from moeparity.numerics.rounding import add, product, rounded, tf32, wide, working
from moeparity.ops.experts import ACTIVATION, CLAMPED, EPILOGUE, INPUT
from moeparity.ops.kernels.exponentials import CUDA_FAST, sigmoid, silu
from moeparity.ops.kernels.linear import gemm_of, places_tried
from moeparity.ops.kernels.placement import RANKS, gathered, parts
from moeparity.ops.linear import COLUMN
from moeparity.ops.placement import cut

Project = Callable[[torch.Tensor, torch.Tensor, torch.dtype, torch.dtype], torch.Tensor]
Settings = Mapping[str, Any]
Scores = torch.Tensor | None
Stacks = Mapping[str, Sequence[torch.Tensor]]
"""The weights, whole or as the ranks hold them whose activations are gathered before the down projection."""


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
        return run(x_NH, ids_NK, scores, whole, p, at).view(*ids.shape, x.shape[-1])
    if at["parallel"] == COLUMN:
        stacks_by_rank = {name: _outputs(name, stack, pieces, p) for name, stack in w.items()}
        return run(x_NH, ids_NK, scores, stacks_by_rank, p, at).view(*ids.shape, x.shape[-1])
    stacks_by_rank = {name: _outputs(name, stack, pieces, p) for name, stack in w.items() if name.startswith("gate_up")}
    at, stacks_by_rank["down"] = {**at, "output": at["partial"]}, parts(w["down"], pieces, 2)
    # A bias is added once: by the first rank.
    stacks_by_rank["down_bias"] = [w["down_bias"]] if "down_bias" in w else []
    ranks = [{name: [stacks[i]] for name, stacks in stacks_by_rank.items() if i < len(stacks)} for i in range(pieces)]
    rows_by_rank = [run(x_NH, ids_NK, scores, stacks, p, at) for stacks in ranks]
    return torch.stack([rows.view(*ids.shape, x.shape[-1]) for rows in rows_by_rank], dim=RANKS)


def _outputs(name: str, stack: torch.Tensor, pieces: int, p: Settings) -> list[torch.Tensor]:
    """What each rank holds of a stack [E, N, ..] that is cut along its outputs: as much of gate as of up."""
    if not name.startswith("gate_up") or p.get("interleaved"):
        return parts(stack, pieces, 1)
    halves = (parts(half, pieces, 1) for half in stack.chunk(2, dim=1))
    return [torch.cat(halves_of_rank, dim=1) for halves_of_rank in zip(*halves, strict=True)]


def _loop(x: torch.Tensor, ids: torch.Tensor, scores: Scores, w: Stacks, p: Settings, at: Settings) -> torch.Tensor:
    """One GEMM per expert hit, in ascending id; inside an expert, rows by slot, then token."""
    n, k = ids.shape
    rows = torch.empty(n * k, x.shape[-1], dtype=at["output"], device=x.device)
    by_expert = ids.t().reshape(-1).sort(stable=True)
    tokens = by_expert.indices % n
    places = tokens * k + by_expert.indices // n
    counts = torch.bincount(by_expert.values, minlength=w["down"][0].shape[0]).tolist()
    gemm = gemm_of(at)

    def project(x: torch.Tensor, weight: torch.Tensor, inputs: torch.dtype, output: torch.dtype) -> torch.Tensor:
        return gemm(x, weight, None, inputs=inputs, output=output)

    hits = zip(torch.split(tokens, counts), torch.split(places, counts), strict=True)
    for expert, (own_tokens, own_places) in enumerate(hits):
        if len(own_tokens):
            scored = None if scores is None else scores.index_select(0, own_places)
            stacks_of_expert = {name: [stack[expert] for stack in stacks] for name, stacks in w.items()}
            outputs = _mlp(x.index_select(0, own_tokens), scored, stacks_of_expert, p, at, project)
            rows.index_copy_(0, own_places, outputs)
    return rows


def _grouped(x: torch.Tensor, ids: torch.Tensor, scores: Scores, w: Stacks, p: Settings, at: Settings) -> torch.Tensor:
    """torch's grouped GEMM over tokens sorted by expert, then back to slot order."""
    k = ids.shape[1]
    by_expert = torch.sort(ids.reshape(-1))
    counts = torch.bincount(by_expert.values, minlength=w["down"][0].shape[0])
    offsets = counts.cumsum(0).to(torch.int32)

    def project(rows: torch.Tensor, weight: torch.Tensor, inputs: torch.dtype, output: torch.dtype) -> torch.Tensor:
        rows, weight = rounded(rows, inputs), rounded(weight, inputs)
        if at["tf32"] == "yes":
            rows, weight = tf32(rows), tf32(weight)
        if inputs != output:
            rows, weight = wide(rows), wide(weight)
        weight = weight.transpose(-2, -1)
        if at.get("rows", ALL) == ALL:
            return rounded(F.grouped_mm(rows, weight, offs=offsets), output)
        return rounded(_grouped_blocks(rows, weight, counts.tolist(), int(at["rows"])), output)

    scored = None if scores is None else scores[by_expert.indices]
    biases = {
        name: [stack[by_expert.values] for stack in stacks] for name, stacks in w.items() if name.endswith("bias")
    }
    sorted_rows = _mlp(x[by_expert.indices // k], scored, {**w, **biases}, p, at, project)
    inverse = torch.empty_like(by_expert.indices)
    inverse[by_expert.indices] = torch.arange(inverse.numel(), device=x.device)
    return sorted_rows[inverse]


def _grouped_blocks(rows: torch.Tensor, weight: torch.Tensor, counts: Sequence[int], size: int) -> torch.Tensor:
    """rows [M, K] sorted by expert, weight [E, K, N] -> [M, N]: a grouped GEMM of each block of one expert's rows."""
    offsets = torch.tensor([size], dtype=torch.int32, device=rows.device)
    key = ("grouped", weight.shape[1:], weight.stride())

    def of_expert(expert: int, span: torch.Tensor) -> torch.Tensor:
        stack = weight[expert : expert + 1]
        return in_blocks(span, size, lambda block: F.grouped_mm(block, stack, offs=offsets), key=key)

    spans = torch.split(rows, list(counts))
    with places_tried():
        return torch.cat([of_expert(expert, span) for expert, span in enumerate(spans) if len(span)])


def _mlp(x: torch.Tensor, scores: Scores, w: Stacks, p: Settings, at: Settings, project: Project) -> torch.Tensor:
    """Rows [M, H] of x [M, H], with scores [M, 1] where they are not left to the combine."""
    where = at["score_site"]
    if scores is not None and where == INPUT:
        x = product(x, scores, at["scored"])
    gate_up = zip(w["gate_up"], _biases(w, "gate_up"), strict=True)
    hidden, inputs = gathered([_hidden(x, *operands, p, at, project) for operands in gate_up]), at["product"]
    if scores is not None and where == ACTIVATION:
        hidden, inputs = product(hidden, scores, at["scored"]), at["scored"]

    def down(output: torch.dtype) -> torch.Tensor:
        downs = zip(w["down"], _biases(w, "down"), strict=True)
        return gathered([_projected(hidden, *operands, inputs, output, at, project) for operands in downs])

    if scores is not None and where == EPILOGUE:
        return product(down(working(inputs, at["output"])), scores, at["output"])
    return down(at["output"])


def _biases(w: Stacks, name: str) -> Sequence[torch.Tensor | None]:
    return w.get(f"{name}_bias", [None] * len(w[name]))


def _projected(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    inputs: torch.dtype,
    output: torch.dtype,
    at: Settings,
    project: Project,
) -> torch.Tensor:
    """A GEMM and, after it, its bias [N] or [M, N]; without one, where another rank has it, rounded as there."""
    projection = project(x, weight, inputs, at.get("unbiased", output))
    return rounded(projection, output) if bias is None else add(projection, bias, output)


def _hidden(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, p: Settings, at: Settings, project: Project
) -> torch.Tensor:
    """What the down projection takes of rows x [M, H]; weight [2I, H] or [E, 2I, H], bias [2I] or [M, 2I]."""
    inputs, dtype = at["projections"], at.get("biased", at["projections"])
    if at["gate_up"] == "split":
        biases = (None, None) if bias is None else _halves(bias, -1, p)
        halves = zip(_halves(weight, -2, p), biases, strict=True)
        gate, up = (_projected(x, *operands, inputs, dtype, at, project) for operands in halves)
    else:
        gate, up = _halves(_projected(x, weight, bias, inputs, dtype, at, project), -1, p)
    if p.get("glu") == CLAMPED:
        return _clamped(gate, up, p, at)
    return swiglu(gate, up, activation=at["activation"], output=at["product"], logistic=at.get("logistic", NATIVE))


def _halves(x: torch.Tensor, axis: int, p: Settings) -> tuple[torch.Tensor, ...]:
    """What belongs to gate and what to up, along the axis of outputs: -1, or -2 of a weight."""
    if not p.get("interleaved"):
        return x.chunk(2, dim=axis)
    # Matrices of their own: torch's grouped GEMM takes none with another's rows between its own.
    alternate = (x[..., i::2] if axis == -1 else x[..., i::2, :].contiguous() for i in range(2))
    return tuple(alternate)


def _clamped(gate: torch.Tensor, up: torch.Tensor, p: Settings, at: Settings) -> torch.Tensor:
    """(up + 1) * gate * sigmoid(alpha * gate), every step rounded; transformers 5.23.0, GptOssExperts._apply_gate."""
    gate, up = gate.clamp(max=p["limit"]), up.clamp(-p["limit"], p["limit"])
    gain = rounded(_computed_for(at["gain"], gate) * p["alpha"], at["gain"])
    share = rounded(sigmoid(_computed_for(at["sigmoid"], gain), at.get("logistic", NATIVE)), at["sigmoid"])
    shifted = rounded(_computed_for(at["shifted"], up) + 1, at["shifted"])
    return product(shifted, product(gate, share, at["activation"]), at["product"])


def _computed_for(output: torch.dtype, x: torch.Tensor) -> torch.Tensor:
    """x in the dtype in which a function of it is computed: its own if `output` is that too."""
    return x if x.dtype == output else x.to(working(x.dtype, output))


def swiglu(
    gate: torch.Tensor, up: torch.Tensor, *, activation: torch.dtype, output: torch.dtype, logistic: str
) -> torch.Tensor:
    """silu(gate) in the form `logistic`, rounded to `activation`, times up, rounded to `output`."""
    activated = rounded(silu(_computed_for(activation, gate), logistic), activation)
    if logistic == CUDA_FAST and activated.dtype == torch.float32:
        return rounded(fast_product(activated, up.float()), output)
    return product(activated, up, output)
