"""Kernel of `experts`, and the SwiGLU that dense MLPs share with it.

The weights are the stacks that transformers holds in memory: `gate_up` [E, 2I, H], with the rows of gate first unless
they alternate with those of up, and `down` [E, H, I]. Biases are `gate_up_bias` [E, 2I], in the same layout, and
`down_bias` [E, H].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from moeparity.numerics.cuda import fast_product
from moeparity.numerics.joined_steps import Apply, JoinedGemm, StepRows, Steps, call
from moeparity.numerics.orders import NATIVE
from moeparity.numerics.rounding import add, product, rounded, stored, tf32, wide, working
from moeparity.ops.experts import ACTIVATION, CLAMPED, EPILOGUE, INPUT
from moeparity.ops.kernels.expert_groups import all_groups, groups_of_steps
from moeparity.ops.kernels.exponentials import CUDA_FAST, sigmoid, silu
from moeparity.ops.kernels.linear import gemm_of, in_blocks
from moeparity.ops.kernels.pieces import each, gathered, stacked
from moeparity.ops.kernels.placement import parts
from moeparity.ops.linear import COLUMN
from moeparity.ops.placement import cut
from moeparity.progress import through

Project = Callable[[torch.Tensor, torch.Tensor, torch.dtype, torch.dtype], torch.Tensor]
Settings = Mapping[str, Any]
Scores = torch.Tensor | None
Stacks = Mapping[str, Sequence[torch.Tensor]]
"""The weights by name: whole, or cut over the ranks whose activations are gathered before the down projection."""


def experts(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor | None,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Settings,
    steps: Steps | None = None,
) -> torch.Tensor:
    """x [B, T, H], ids [B, T, K] -> rows [B, T, K, H], the expert's output for each slot of each token.

    weights [B, T, K] are given if rows are multiplied by them here (`score_site`). If each expert is cut over ranks
    row-wise, the results are partial sums [B, ranks, T, K, H].
    """
    run, pieces = _grouped if at["implementation"] == "grouped" else _loop, cut(at)
    if steps is not None:
        return _in_steps(run, x, ids, weights, w, p, at, steps)
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
    # Only the first rank adds the bias.
    stacks_by_rank["down_bias"] = [w["down_bias"]] if "down_bias" in w else []
    ranks = [{name: [stacks[i]] for name, stacks in stacks_by_rank.items() if i < len(stacks)} for i in range(pieces)]

    def rows_of_rank(stacks: Stacks) -> torch.Tensor:
        return run(x_NH, ids_NK, scores, stacks, p, at).view(*ids.shape, x.shape[-1])

    return stacked(each(rows_of_rank, ((stacks,) for stacks in through(ranks, [1] * pieces)), pieces))


def _in_steps(
    run: Callable[..., torch.Tensor],
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor | None,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Settings,
    steps: Steps,
) -> torch.Tensor:
    """The rows of experts that are not cut over ranks, with the bits of step after step."""
    of_rows = (None if value is None else value.flatten(0, 1)[steps.places] for value in (x, ids, weights))
    x_NH, ids_NK, weights_NK = of_rows
    scores = None if weights_NK is None else weights_NK.reshape(-1, 1)
    whole = {name: [stack] for name, stack in w.items()}
    rows = run(x_NH, ids_NK, scores, whole, p, at, steps)
    return rows.view(*steps.places.shape, ids.shape[-1], -1)[steps.back].view(*ids.shape, -1)


def _outputs(name: str, stack: torch.Tensor, pieces: int, p: Settings) -> list[torch.Tensor]:
    """Each rank's part of a stack [E, N, ..] that is cut along its outputs: equally much of gate and of up."""
    if not name.startswith("gate_up") or p.get("interleaved"):
        return parts(stack, pieces, 1)
    halves = (parts(half, pieces, 1) for half in stack.chunk(2, dim=1))
    return [torch.cat(halves_of_rank, dim=1) for halves_of_rank in zip(*halves, strict=True)]


def _loop(
    x: torch.Tensor,
    ids: torch.Tensor,
    scores: Scores,
    w: Stacks,
    p: Settings,
    at: Settings,
    steps: Steps | None = None,
) -> torch.Tensor:
    """One GEMM for each expert that is hit, in ascending id; within an expert, rows by step, then slot, then token."""
    n, k = ids.shape
    rows = torch.empty(n * k, x.shape[-1], dtype=at["output"], device=x.device)
    by_expert = _by_expert_and_step(ids.t(), steps).reshape(-1).sort(stable=True)
    tokens = by_expert.indices % n
    places = tokens * k + by_expert.indices // n
    counts = _counts(by_expert.values, w, steps)
    gemm, of_expert = gemm_of(at), counts.sum(1).tolist()
    hits = zip(torch.split(tokens, of_expert), torch.split(places, of_expert), counts.tolist(), strict=True)
    for expert, (own_tokens, own_places, of_steps) in through(enumerate(hits), of_expert):
        if len(own_tokens):
            scored = None if scores is None else scores.index_select(0, own_places)
            stacks_of_expert = {name: [stack[expert] for stack in stacks] for name, stacks in w.items()}
            turns = StepRows([hit for hit in of_steps if hit])
            project = _alone(gemm) if steps is None else _joined(gemm, at, turns.sizes)
            outputs = _mlp(x.index_select(0, own_tokens), scored, stacks_of_expert, p, at, project, turns)
            rows.index_copy_(0, own_places, outputs)
    return rows


def _by_expert_and_step(ids: torch.Tensor, steps: Steps | None) -> torch.Tensor:
    """A number for each slot that ascends by expert and, within an expert, by step; ids [K, n]."""
    return ids if steps is None else ids * len(steps.sizes) + steps.numbers


def _counts(numbers: torch.Tensor, w: Stacks, steps: Steps | None) -> torch.Tensor:
    """The number of rows by expert and step, int64 [E, steps]."""
    experts, of_each = w["down"][0].shape[0], 1 if steps is None else len(steps.sizes)
    return torch.bincount(numbers, minlength=experts * of_each).view(experts, of_each)


def _alone(gemm: Callable[..., torch.Tensor]) -> Project:
    """One GEMM of all rows."""

    def project(x: torch.Tensor, weight: torch.Tensor, inputs: torch.dtype, output: torch.dtype) -> torch.Tensor:
        return gemm(x, weight, None, inputs=inputs, output=output)

    return project


def _joined(gemm: Callable[..., torch.Tensor], at: Settings, sizes: Sequence[int]) -> Project:
    """The GEMMs of the rows of several consecutive steps."""

    def project(x: torch.Tensor, weight: torch.Tensor, inputs: torch.dtype, output: torch.dtype) -> torch.Tensor:
        def alone(x: torch.Tensor, weight: torch.Tensor, _: torch.Tensor | None) -> torch.Tensor:
            return gemm(x, weight, None, inputs=inputs, output=output)

        key = ("loop", inputs, output, *at.items())
        return JoinedGemm(alone=alone, blocks=in_blocks(at, alone), weight=weight, bias=None, key=key).in_steps(
            x, sizes
        )

    return project


def _grouped(
    x: torch.Tensor,
    ids: torch.Tensor,
    scores: Scores,
    w: Stacks,
    p: Settings,
    at: Settings,
    steps: Steps | None = None,
) -> torch.Tensor:
    """torch's grouped GEMM over tokens sorted by expert, then back to slot order."""
    k = ids.shape[1]
    numbers = _by_expert_and_step(ids.t(), steps).t().reshape(-1)
    by_expert = torch.sort(numbers)
    counts, places = _counts(by_expert.values, w, steps), by_expert.indices
    multiply, turns = all_groups(counts, at), StepRows((len(places),))
    if steps is not None:
        multiply = groups_of_steps(counts, at)
        order = torch.sort(steps.numbers[places // k], stable=True).indices
        turns = StepRows([rows * k for rows in steps.sizes], order)

    def project(rows: torch.Tensor, weight: torch.Tensor, inputs: torch.dtype, output: torch.dtype) -> torch.Tensor:
        rows, weight = rounded(rows, inputs), rounded(weight, inputs)
        if at["tf32"] == "yes":
            rows, weight = tf32(rows), tf32(weight)
        if inputs != output:
            rows, weight = wide(rows), wide(weight)
        return rounded(multiply(rows, weight), output)

    scored = None if scores is None else scores[places]
    experts = ids.reshape(-1)[places]
    biases = {name: [stack[experts] for stack in stacks] for name, stacks in w.items() if name.endswith("bias")}
    sorted_rows = _mlp(x[places // k], scored, {**w, **biases}, p, at, project, turns)
    inverse = torch.empty_like(places)
    inverse[places] = torch.arange(inverse.numel(), device=x.device)
    return sorted_rows[inverse]


def _mlp(
    x: torch.Tensor, scores: Scores, w: Stacks, p: Settings, at: Settings, project: Project, turns: StepRows
) -> torch.Tensor:
    """Rows [M, H] of x [M, H]; scores [M, 1] unless they are left to the combine."""
    where = at["score_site"]
    if scores is not None and where == INPUT:
        x = product(x, scores, at["scored"])
    pieces = len(w["gate_up"])
    gate_up = (
        (x, *operands, p, at, project, turns) for operands in zip(w["gate_up"], _biases(w, "gate_up"), strict=True)
    )
    hidden, inputs = gathered(each(_hidden, gate_up, pieces), pieces), stored(at["product"])
    if scores is not None and where == ACTIVATION:
        hidden, inputs = product(hidden, scores, at["scored"]), at["scored"]

    def down(output: torch.dtype) -> torch.Tensor:
        downs = zip(w["down"], _biases(w, "down"), strict=True)
        operands = ((hidden, *weights_of, inputs, output, at, project) for weights_of in downs)
        return gathered(each(_projected, operands, pieces), pieces)

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
    """A GEMM, then its bias [N] or [M, N]. Without a bias, since another rank adds it, the result is rounded as
    there.
    """
    projection = project(x, weight, inputs, at.get("unbiased", output))
    return rounded(projection, output) if bias is None else add(projection, bias, output)


def _hidden(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    p: Settings,
    at: Settings,
    project: Project,
    turns: StepRows,
) -> torch.Tensor:
    """The input of the down projection for rows x [M, H]; weight [2I, H] or [E, 2I, H], bias [2I] or [M, 2I]."""
    inputs, dtype = at["projections"], at.get("biased", at["projections"])

    def activated(apply: Apply, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        if p.get("glu") == CLAMPED:
            return _clamped(gate, up, p, at, apply)
        logistic = at.get("logistic", NATIVE)
        return swiglu(gate, up, activation=at["activation"], output=at["product"], logistic=logistic, apply=apply)

    if at["gate_up"] == "split":
        biases = (None, None) if bias is None else _halves(bias, -1, p)
        halves = zip(_halves(weight, -2, p), biases, strict=True)
        gate, up = (_projected(x, *operands, inputs, dtype, at, project) for operands in halves)
        return turns.each(activated, lambda *halves: halves, gate, up)
    gate_up = _projected(x, weight, bias, inputs, dtype, at, project)
    return turns.each(activated, lambda gate_up_row: _halves(gate_up_row, -1, p), gate_up)


def _halves(x: torch.Tensor, axis: int, p: Settings) -> tuple[torch.Tensor, ...]:
    """The halves that belong to gate and to up, along the axis of outputs: -1, or -2 for a weight."""
    if not p.get("interleaved"):
        return x.chunk(2, dim=axis)
    # Copied to matrices of their own: torch's grouped GEMM does not take interleaved ones.
    alternate = (x[..., i::2] if axis == -1 else x[..., i::2, :].contiguous() for i in range(2))
    return tuple(alternate)


def _clamped(gate: torch.Tensor, up: torch.Tensor, p: Settings, at: Settings, apply: Apply) -> torch.Tensor:
    """(up + 1) * gate * sigmoid(alpha * gate), every step rounded; transformers 5.23.0, GptOssExperts._apply_gate."""
    gate, up = gate.clamp(max=p["limit"]), up.clamp(-p["limit"], p["limit"])
    gain = rounded(_computed_for(at["gain"], gate) * p["alpha"], at["gain"])
    share = rounded(sigmoid(_computed_for(at["sigmoid"], gain), at.get("logistic", NATIVE), apply), at["sigmoid"])
    shifted = rounded(_computed_for(at["shifted"], up) + 1, at["shifted"])
    return product(shifted, product(gate, share, at["activation"]), at["product"])


def _computed_for(output: torch.dtype, x: torch.Tensor) -> torch.Tensor:
    """x in the dtype in which a function of it is computed; its own dtype if `output` is the same."""
    return x if x.dtype == output else x.to(working(x.dtype, output))


def swiglu(
    gate: torch.Tensor,
    up: torch.Tensor,
    *,
    activation: torch.dtype,
    output: torch.dtype,
    logistic: str,
    apply: Apply = call,
) -> torch.Tensor:
    """silu(gate) in the form `logistic`, rounded to `activation`, times up, rounded to `output`."""
    activated = rounded(silu(_computed_for(activation, gate), logistic, apply), activation)
    if logistic == CUDA_FAST and activated.dtype == torch.float32:
        return rounded(fast_product(activated, up.float()), output)
    return product(activated, up, output)
