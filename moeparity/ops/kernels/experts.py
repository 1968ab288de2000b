"""Kernel of `experts`.

The weights are the stacks that transformers holds in memory: `gate_up` [E, 2I, H], with the rows of gate first unless
they alternate with those of up (of experts without a gate [E, I, H], those of up), and `down` [E, H, I]. Biases are
`gate_up_bias` [E, 2I], in the same layout, and `down_bias` [E, H].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from moeparity.numerics.joined_steps import Apply, JoinedGemm, StepRows, Steps
from moeparity.numerics.orders import NATIVE
from moeparity.numerics.rounding import add, product, rounded, stored, tf32, wide, working
from moeparity.ops.experts import ACTIVATION, BATCHED, CLAMPED, EPILOGUE, GROUPED, INPUT, OUTPUT, RELU2
from moeparity.ops.kernels.adapter import Adapter, beside, in_stacks, of_expert
from moeparity.ops.kernels.expert_groups import all_groups, groups_of_steps
from moeparity.ops.kernels.glu import clamped, relu2, swiglu
from moeparity.ops.kernels.linear import gemm_of, in_blocks, with_scales
from moeparity.ops.kernels.pieces import each, gathered, parts, stacked
from moeparity.ops.kernels.quantised import FileScales, dispatched, file_scales
from moeparity.ops.linear import COLUMN
from moeparity.ops.placement import cut
from moeparity.progress import through

Settings = Mapping[str, Any]
Project = Callable[[torch.Tensor, torch.Tensor, torch.dtype, torch.dtype, FileScales, Settings], torch.Tensor]
"""Of x, weight, the dtypes of inputs and output, the checkpoint's scales of the weight, and the choices of the GEMM."""
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
    w = in_stacks(w, p, at)
    run, pieces = {GROUPED: _grouped, BATCHED: _batched}.get(at["implementation"], _loop), cut(at)
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
    scales = file_scales(w, "down", at).by_inputs(pieces, w["down"].shape[2], at)
    stacks_by_rank["down_scales"] = [of_rank.weight for of_rank in scales if of_rank.weight is not None]
    stacks_by_rank["down_input_scale"] = [of_rank.inputs for of_rank in scales if of_rank.inputs is not None]
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
    if stack.dim() == 1:  # static scales, which all ranks have
        return [stack] * pieces
    if not name.startswith("gate_up") or p.get("interleaved") or p.get("glu") == RELU2:
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
    """One GEMM for each expert with weights that is hit, in ascending id; within it rows by step, slot, then token."""
    n, k = ids.shape
    adds_last = "down_a" in w and at["score_site"] != EPILOGUE
    dtype = at["adapter_sum"] if adds_last else at["output"]
    rows = torch.empty(n * k, x.shape[-1], dtype=dtype, device=x.device)
    by_expert = _by_expert_and_step(ids.t(), steps).reshape(-1).sort(stable=True)
    tokens = by_expert.indices % n
    places = tokens * k + by_expert.indices // n
    counts = _counts(by_expert.values, w, steps)
    of_expert = counts.sum(1).tolist()
    (tokens, unhit), (places, others) = (y.tensor_split((sum(of_expert),)) for y in (tokens, places))
    same = x.index_select(0, unhit)
    same = same if scores is None else product(same, scores.index_select(0, others), dtype)
    rows.index_copy_(0, others, rounded(same, dtype))
    hits = zip(torch.split(tokens, of_expert), torch.split(places, of_expert), counts.tolist(), strict=True)
    for expert, (own_tokens, own_places, of_steps) in through(enumerate(hits), of_expert):
        if len(own_tokens):
            scored = None if scores is None else scores.index_select(0, own_places)
            stacks_of_expert = {name: [stack[expert] for stack in stacks] for name, stacks in w.items()}
            turns = StepRows([hit for hit in of_steps if hit])
            project = partial(_product, None if steps is None else turns.sizes)
            outputs = _mlp(x.index_select(0, own_tokens), scored, stacks_of_expert, p, at, project, turns)
            rows.index_copy_(0, own_places, outputs)
    return rows


def _by_expert_and_step(ids: torch.Tensor, steps: Steps | None) -> torch.Tensor:
    """A number for each slot that ascends by expert and, within an expert, by step; ids [K, n]."""
    return ids if steps is None else ids * len(steps.sizes) + steps.numbers


def _counts(numbers: torch.Tensor, w: Stacks, steps: Steps | None) -> torch.Tensor:
    """The number of rows by expert with weights and step, int64 [E, steps]."""
    experts, of_each = w["down"][0].shape[0], 1 if steps is None else len(steps.sizes)
    return torch.bincount(numbers, minlength=experts * of_each)[: experts * of_each].view(experts, of_each)


def _product(
    sizes: Sequence[int] | None,
    x: torch.Tensor,
    weight: torch.Tensor,
    inputs: torch.dtype,
    output: torch.dtype,
    scales: FileScales,
    at: Settings,
) -> torch.Tensor:
    """One GEMM of all rows, or those of the rows of several consecutive steps."""
    alone = with_scales(partial(gemm_of(at), inputs=inputs, output=output), at, scales)
    if sizes is None:
        return alone(x, weight, None)
    key = ("loop", inputs, output, *at.items())
    joined = JoinedGemm(alone=alone, blocks=in_blocks(at, alone), weight=weight, bias=None, key=key)
    return joined.in_steps(x, sizes)


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

    def project(
        rows: torch.Tensor, weight: torch.Tensor, inputs: torch.dtype, output: torch.dtype, *_: Any
    ) -> torch.Tensor:
        rows, weight = _operands(rows, weight, inputs, output, at)
        return rounded(multiply(rows, weight), output)

    scored = None if scores is None else scores[places]
    experts = ids.reshape(-1)[places]
    biases = {name: [stack[experts] for stack in stacks] for name, stacks in w.items() if name.endswith("bias")}
    sorted_rows = _mlp(x[places // k], scored, {**w, **biases}, p, at, project, turns)
    inverse = torch.empty_like(places)
    inverse[places] = torch.arange(inverse.numel(), device=x.device)
    return sorted_rows[inverse]


def _operands(
    rows: torch.Tensor, weight: torch.Tensor, inputs: torch.dtype, output: torch.dtype, at: Settings
) -> tuple[torch.Tensor, torch.Tensor]:
    """What a product of torch's own takes: rounded to `inputs`, and widened where its result has another dtype."""
    rows, weight = rounded(rows, inputs), rounded(weight, inputs)
    if at["tf32"] == "yes":
        rows, weight = tf32(rows), tf32(weight)
    return (wide(rows), wide(weight)) if inputs != output else (rows, weight)


def _batched(x: torch.Tensor, ids: torch.Tensor, scores: Scores, w: Stacks, p: Settings, at: Settings) -> torch.Tensor:
    """torch's batched product of every expert for every token, of which the rows that were chosen are taken. Where
    weights meet x, an expert that a token has not chosen is given zeros.
    """
    count, n = w["down"][0].shape[0], len(x)
    places = (ids * n + torch.arange(n, device=x.device)[:, None]).flatten()
    of_all = None
    if scores is not None:
        of_all = scores.new_zeros(count * n, 1).index_copy_(0, places, scores)

    def project(
        rows: torch.Tensor, weight: torch.Tensor, inputs: torch.dtype, output: torch.dtype, *_: Any
    ) -> torch.Tensor:
        rows, weight = _operands(rows, weight, inputs, output, at)
        return rounded(torch.bmm(rows.view(count, n, -1), weight.transpose(1, 2)).flatten(0, 1), output)

    return _mlp(x.repeat(count, 1), of_all, w, p, at, project, StepRows((count * n,)))[places]


def _mlp(
    x: torch.Tensor, scores: Scores, w: Stacks, p: Settings, at: Settings, project: Project, turns: StepRows
) -> torch.Tensor:
    """Rows [M, H] of x [M, H]; scores [M, 1] unless they are left to the combine."""
    where = {INPUT: INPUT, OUTPUT: EPILOGUE}.get(p.get("scored_at") or "", at.get("score_site"))
    if scores is not None and where == INPUT:
        x = product(x, scores, at["scored"])
    x, of_first = dispatched(x, at)
    pieces, lora = len(w["gate_up"]), of_expert(w, "gate_up", p)
    gate_up = (
        (x, *operands, lora, p, of_first, project, turns)
        for operands in zip(w["gate_up"], _biases(w, "gate_up"), _scales(w, "gate_up", at), strict=True)
    )
    hidden, inputs = gathered(each(_hidden, gate_up, pieces), pieces), stored(at["product"])
    if scores is not None and where == ACTIVATION:
        hidden, inputs = product(hidden, scores, at["scored"]), at["scored"]

    def down(output: torch.dtype) -> torch.Tensor:
        downs = zip(w["down"], _biases(w, "down"), _scales(w, "down", at), strict=True)
        operands = ((hidden, *weights_of, inputs, output, at, project) for weights_of in downs)
        rows, of_down = gathered(each(_projected, operands, pieces), pieces), of_expert(w, "down", p)
        return rows if of_down is None else add(rows, beside(hidden, of_down, at), at["adapter_sum"])

    if scores is not None and where == EPILOGUE:
        return product(down(working(inputs, at["output"])), scores, at["output"])
    return down(at["output"])


def _biases(w: Stacks, name: str) -> Sequence[torch.Tensor | None]:
    return w.get(f"{name}_bias", [None] * len(w[name]))


def _scales(w: Stacks, name: str, at: Settings) -> list[FileScales]:
    """The checkpoint's scales of a weight, by rank."""
    ranks = range(len(w[name]))
    return [file_scales({port: stacks[i] for port, stacks in w.items() if i < len(stacks)}, name, at) for i in ranks]


def _projected(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    scales: FileScales,
    inputs: torch.dtype,
    output: torch.dtype,
    at: Settings,
    project: Project,
) -> torch.Tensor:
    """A GEMM, then its bias [N] or [M, N]. Without a bias, since another rank adds it, the result is rounded as
    there.
    """
    projection = project(x, weight, inputs, at.get("unbiased", output), scales, at)
    return rounded(projection, output) if bias is None else add(projection, bias, output)


def _hidden(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    scales: FileScales,
    lora: Adapter | None,
    p: Settings,
    at: Settings,
    project: Project,
    turns: StepRows,
) -> torch.Tensor:
    """The input of the down projection for rows x [M, H]; weight [2I, H] or [E, 2I, H], bias [2I] or [M, 2I]."""
    inputs, dtype = at["projections"], at.get("biased", at["projections"])
    delta = None if lora is None else beside(x, lora, at)

    def adapted(projection: torch.Tensor, of_it: torch.Tensor | None) -> torch.Tensor:
        return projection if of_it is None else add(projection, of_it, at["adapter_sum"])

    def activated(apply: Apply, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        if p.get("glu") == CLAMPED:
            return clamped(gate, up, p, at, apply)
        logistic = at.get("logistic", NATIVE)
        return swiglu(gate, up, activation=at["activation"], output=at["product"], logistic=logistic, apply=apply)

    if p.get("glu") == RELU2:
        return relu2(adapted(_projected(x, weight, bias, scales, inputs, dtype, at, project), delta), at["product"])
    if at["gate_up"] == "split":
        biases = (None, None) if bias is None else _halves(bias, -1, p)
        of_rows = (
            [scales, scales]
            if scales.weight is None
            else [scales._replace(weight=half) for half in _halves(scales.weight, -2, p)]
        )
        halves = zip(_halves(weight, -2, p), biases, of_rows, strict=True)
        deltas = (None, None) if delta is None else _halves(delta, -1, p)
        gate, up = (
            adapted(_projected(x, *operands, inputs, dtype, at, project), of_half)
            for operands, of_half in zip(halves, deltas, strict=True)
        )
        return turns.each(activated, lambda *halves: halves, gate, up)
    gate_up = adapted(_projected(x, weight, bias, scales, inputs, dtype, at, project), delta)
    return turns.each(activated, lambda gate_up_row: _halves(gate_up_row, -1, p), gate_up)


def _halves(x: torch.Tensor, axis: int, p: Settings) -> tuple[torch.Tensor, ...]:
    """The halves that belong to gate and to up, along the axis of outputs: -1, or -2 for a weight."""
    if not p.get("interleaved"):
        return x.chunk(2, dim=axis)
    # Copied to matrices of their own: torch's grouped GEMM does not take interleaved ones.
    alternate = (x[..., i::2] if axis == -1 else x[..., i::2, :].contiguous() for i in range(2))
    return tuple(alternate)
