"""Attention by online softmax over tiles of keys, and the merge of the results for several runs of tiles.

Shapes: q [B, H, T, D], k [B, H, S, D], v [B, H, S, V], visible bool [B or 1, 1, T, S]; a statistic of a row is
[B, H, T, 1]. The queries are the last T of S tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from moeparity.errors import listed
from moeparity.numerics import cpu, cuda, gemm
from moeparity.numerics.dtypes import name_of
from moeparity.numerics.fma import fma
from moeparity.numerics.orders import NATIVE
from moeparity.numerics.rounding import product, rounded, tf32, working
from moeparity.numerics.tensor_core.gemm_orders import tensor_core_order
from moeparity.ops.attention import END, RESCALE, START
from moeparity.ops.attention_forms import (
    FIRST,
    L2,
    LIBM,
    MACHINE,
    QUERY,
    SEGMENTS,
    SHARED,
    U20,
)
from moeparity.ops.attribute import TRITON, RefusedError
from moeparity.ops.kernels.exponentials import exp, exp2, log, row_sum
from moeparity.ops.kernels.flash_merges import Run, Sums, finite, merge_segments, merged, normalized
from moeparity.ops.kernels.flash_on_gpu import attend_on_gpu, onto_on_gpu
from moeparity.ops.kernels.key_tiles import Room, Tile, cuts

LOG2E = math.log2(math.e)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Queries, keys and values of all heads, with what their attention needs.

    q [B, H, T, D], k [B, G, S, D], v [B, G, S, V] (G < H: several query heads share a key head), mask bool [B, S], or
    [1, T, T] in a pack. window: how many tokens a query sees, itself included (None: all before it). scale: factor on q
    @ k.T.
    sinks: [1, H, 1, 1]. free: how many of the last keys are places of a cache that no token has filled. ahead: how many
    keys after itself a query sees too. counted: how often a sink counts. selected: the keys that a query sees of those,
    int64 [B, T, n], -1 for none; None: all.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    mask: torch.Tensor
    window: int | None
    scale: float
    sinks: torch.Tensor | None = None
    free: int = 0
    ahead: int = 0
    counted: int = 1
    selected: torch.Tensor | None = None


def flash(heads: Heads, visible: torch.Tensor, at: Mapping[str, Any]) -> torch.Tensor:
    """Attention [B, H, T, V] in `output`; scores, sums and outputs are in fp32, in fp64 if an operand or a site is.

    The queries are the last T of S keys; visible [B or 1, 1, T, S]. A query that sees no key gets zeros. A tile of
    which a query sees nothing changes nothing, so none is skipped. A head's sink is part of the sum of the first run.
    With `order: native` a tile is added to the rescaled output as torch's GEMM gives it, or in an order written out or
    of tensor cores, and its sum of exponentials to the sum so far; else `flash_on_gpu` computes a run as FlashAttention
    2 does. It imitates FlashAttention 0251105 (read;
    softmax.h: a maximum of -inf is taken as 0, the sum is of exponentials before their rounding), and vLLM 0.33.0,
    csrc/cpu/cpu_attn_impl.hpp (read).
    """
    room = _room(heads, at) if at["kv_block"] == L2 else None
    heads = operands(heads, at)
    q, k, v, outputs = heads.q, heads.k, heads.v, []
    for cut in cuts(q.shape[2], k.shape[2], heads.window, at, room):
        visible_rows = visible[:, :, cut.queries]
        runs = [[Tile(k[:, :, tile], v[:, :, tile], visible_rows[..., tile]) for tile in run] for run in cut.runs]
        outputs.append(merged_runs(replace(heads, q=q[:, :, cut.queries]), runs, at))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)


def _room(heads: Heads, at: Mapping[str, Any]) -> Room:
    l2 = at["l2_bytes"]
    return Room(cpu.l2_bytes() if l2 == MACHINE else int(l2), heads.q.shape[-1], heads.k.element_size())


def merged_runs(heads: Heads, runs: Sequence[Sequence[Tile]], at: Mapping[str, Any]) -> torch.Tensor:
    """The attention of some queries to all runs of tiles, merged, [B, H, T, V] in `output`."""
    without_sinks = replace(heads, sinks=None)
    per_run = [without_sinks if i else heads for i in range(len(runs))]
    if at["splits"] != 1 and at["merge"] == SEGMENTS:
        return rounded(merge_segments([_sums(*run, at) for run in zip(per_run, runs, strict=True)]), at["output"])
    attended = [attend(*run, at) for run in zip(per_run, runs, strict=True)]
    if at["splits"] == 1 or (at["splits"] == SHARED and len(runs) == 1):
        return _rescaled(attended[0], heads.sinks, at)
    stored = [Run(rounded(run.out, at["split"]), run.lse) for run in attended]
    return rounded(merged(stored, at), at["output"])


def operands(heads: Heads, at: Mapping[str, Any]) -> Heads:
    """Queries, keys and values in the dtype of the computation, rounded to TF32 if the node asks for it; queries
    already scaled if it asks for that, with a scale of 1 for the scores.
    """
    step = working(heads.q.dtype, heads.k.dtype, heads.v.dtype, at["probabilities"], at["output"])
    _refuse_on_gpu(heads, at)
    q, k, v = (x.to(step) for x in (heads.q, heads.k, heads.v))
    if at.get("scale_on") == QUERY:
        q, heads = q * torch.tensor(heads.scale, dtype=step, device=q.device), replace(heads, scale=1.0)
    return replace(heads, q=_operand(q, at), k=_operand(k, at), v=_operand(v, at))


def _refuse_on_gpu(heads: Heads, at: Mapping[str, Any]) -> None:
    """Raises RefusedError for operands that a GPU's kernel does not take."""
    dtypes = {heads.q.dtype, heads.k.dtype, heads.v.dtype}
    for name in ("order", "scores_order", "values_order"):
        if tensor_core_order(str(at.get(name, NATIVE))) is not None and dtypes != {at["probabilities"]}:
            names = listed(sorted(str(name_of(dtype)) for dtype in dtypes))
            reason = f"queries, keys and values are {names}, and kernels on tensor cores take one 16-bit dtype."
            raise RefusedError(name, f"{reason} Set `native` here.")


def _operand(x: torch.Tensor, at: Mapping[str, Any]) -> torch.Tensor:
    return tf32(x) if at["tf32"] == "yes" else x


def attend(heads: Heads, tiles: Sequence[Tile], at: Mapping[str, Any]) -> Run:
    """The attention to the keys of some tiles, in the dtype of the operands."""
    core = tensor_core_order(str(at.get("order", NATIVE)))
    if core is not None:
        return Run(*attend_on_gpu(heads.q, _walked(tiles, at), heads.scale, core, at["probabilities"]))
    sums, formula = _sums(heads, tiles, at), _formula(heads, at)
    total, sink = sums.total, at.get("sink") if heads.sinks is not None else None
    if heads.sinks is not None and sink == END:
        total = total + formula.of_sink(heads.sinks.to(total.dtype), finite(sums.highest))
    lse = formula.in_nats(finite(sums.highest)) + formula.log(total)
    if at["normalize"] == FIRST:
        return Run(sums.out, lse)
    return Run(normalized(sums.out, torch.where(total == 0, 1.0, total), at), lse)


def _walked(tiles: Sequence[Tile], at: Mapping[str, Any]) -> Sequence[Tile]:
    return tiles if at["kv_order"] == "ascending" else tiles[::-1]


def _formula(heads: Heads, at: Mapping[str, Any]) -> _Exp2 | _Exp:
    return _FORMULAS[at["exponential"]](heads.scale, heads.q.dtype, heads.q.device)


def _sums(heads: Heads, tiles: Sequence[Tile], at: Mapping[str, Any]) -> Sums:
    """What the keys of some tiles add up to, a sink that sums start from included."""
    q, formula = heads.q, _formula(heads, at)
    highest = torch.full((*q.shape[:3], 1), -math.inf, dtype=q.dtype, device=q.device)
    total = torch.zeros_like(highest)
    if heads.sinks is not None and at.get("sink") == START:
        highest, total = heads.sinks.to(q.dtype).expand_as(highest), torch.ones_like(highest)
    out = torch.zeros(*q.shape[:3], heads.v.shape[-1], dtype=q.dtype, device=q.device)
    for tile in _walked(tiles, at):
        scores = _product(q, tile.k.transpose(2, 3), at["scores_order"], at).masked_fill(~tile.visible, -math.inf)
        scores = formula.scaled(scores)
        before, highest = highest, _raised(highest, scores.amax(-1, keepdim=True), formula, at)
        p, shrunk = formula.p(scores, finite(highest)), formula.shrink(before, finite(highest))
        summed = row_sum(_whole(p, at), at["row_sum"])
        total = fma(total, shrunk, summed) if at["contraction"] == "sum" else total * shrunk + summed
        p = p / torch.where(summed == 0, 1.0, summed) if at["normalize"] == FIRST else p
        weights = _operand(rounded(p, at["probabilities"]).to(q.dtype), at)
        out = _product(weights, tile.v, at["values_order"], at, onto=out * shrunk)
    return Sums(out, highest, total)


def _whole(p: torch.Tensor, at: Mapping[str, Any]) -> torch.Tensor:
    """The exponentials of a tile, on tensor cores filled up with zeros to its full width."""
    if tensor_core_order(str(at["scores_order"])) is None:
        return p
    return torch.nn.functional.pad(p, (0, int(at["kv_block"]) - p.shape[-1]))


def _rescaled(run: Run, sinks: torch.Tensor | None, at: Mapping[str, Any]) -> torch.Tensor:
    """The output of a run in its dtype; if the sink is applied at the end, times the fraction that is not the sink's.

    Imitates torchtitan 0014ac2ca4, models/gpt_oss/model.py Attention.forward (read).
    """
    out = rounded(run.out, at["output"])
    if sinks is None or at["sink"] != RESCALE:
        return out
    return product(out, rounded(torch.sigmoid(run.lse - sinks.to(run.lse.dtype)), at["output"]), at["output"])


def _product(
    a: torch.Tensor, b: torch.Tensor, order: str, at: Mapping[str, Any], *, onto: torch.Tensor | None = None
) -> torch.Tensor:
    """Batched a @ b, added to `onto`: torch's GEMM, then one addition; in an order written out, and on tensor cores,
    the sum starts there.
    """
    core = tensor_core_order(order)
    if core is not None:
        return onto_on_gpu(core.instruction(str(name_of(at["probabilities"]))), a, b, onto)
    if order != NATIVE:
        return gemm.matmul(a, b, order, start=onto)
    product = torch.matmul(a, b)
    return product if onto is None else onto + product


def _raised(before: torch.Tensor, highest: torch.Tensor, formula: _Exp2 | _Exp, at: Mapping[str, Any]) -> torch.Tensor:
    """The maximum that exponentials are taken under: the highest of all, or what it was where that is little more."""
    above = torch.maximum(before, highest)
    if at["rescale_above"] == 0:
        return above
    return torch.where(formula.exponent(above - before) <= at["rescale_above"], before, above)


class _Exp2:
    """exp2 of unscaled scores, with softmax scale and log2(e) folded into one factor."""

    log = staticmethod(log)

    def __init__(self, scale: float, dtype: torch.dtype, device: torch.device, *, contracted: bool) -> None:
        self.scale, self.factor = (torch.tensor(x, dtype=dtype, device=device) for x in (scale, scale * LOG2E))
        self.contracted = contracted

    def scaled(self, scores: torch.Tensor) -> torch.Tensor:
        return scores

    def exponent(self, difference: torch.Tensor) -> torch.Tensor:
        return difference * self.factor

    def p(self, scores: torch.Tensor, highest: torch.Tensor) -> torch.Tensor:
        most = highest * self.factor
        if self.contracted:
            return exp2(fma(scores, self.factor, -most))
        return exp2(scores * self.factor - most)

    def shrink(self, before: torch.Tensor, highest: torch.Tensor) -> torch.Tensor:
        if self.contracted:
            return exp2((before - highest) * self.factor)
        return exp2(before * self.factor - highest * self.factor)

    def of_sink(self, sinks: torch.Tensor, highest: torch.Tensor) -> torch.Tensor:
        most, log2e = highest * self.factor, torch.tensor(LOG2E, dtype=highest.dtype, device=highest.device)
        return exp2(fma(sinks.expand_as(most), log2e, -most) if self.contracted else sinks * log2e - most)

    def in_nats(self, highest: torch.Tensor) -> torch.Tensor:
        return highest * self.scale


class _Exp:
    """exp of scores times the softmax scale; quick, or the C library's, as on CPUs, in fp32 only."""

    def __init__(self, scale: float, dtype: torch.dtype, device: torch.device, *, by: str = "exp") -> None:
        self.scale = torch.tensor(scale, dtype=dtype, device=device)
        by = by if dtype == torch.float32 else "exp"
        self.of_score = {U20: cpu.exp_u20, LIBM: cpu.expf, TRITON: cuda.triton_exp}.get(by, exp)
        self.of_maximum = {U20: cpu.expf}.get(by, self.of_score)
        self.log = {LIBM: cpu.logf, TRITON: cuda.logf}.get(by, log)

    def scaled(self, scores: torch.Tensor) -> torch.Tensor:
        return scores * self.scale

    def exponent(self, difference: torch.Tensor) -> torch.Tensor:
        return difference

    def p(self, scores: torch.Tensor, highest: torch.Tensor) -> torch.Tensor:
        return self.of_score(scores - highest)

    def shrink(self, before: torch.Tensor, highest: torch.Tensor) -> torch.Tensor:
        return self.of_maximum(before - highest)

    def of_sink(self, sinks: torch.Tensor, highest: torch.Tensor) -> torch.Tensor:
        return self.of_score(sinks - highest)

    def in_nats(self, highest: torch.Tensor) -> torch.Tensor:
        return highest


_FORMULAS: dict[str, Callable[[float, torch.dtype, torch.device], _Exp2 | _Exp]] = {
    "exp2_fma": partial(_Exp2, contracted=True),
    "exp2": partial(_Exp2, contracted=False),
    "exp": _Exp,
    **{name: partial(_Exp, by=name) for name in (U20, LIBM, TRITON)},
}
