"""How the results of several runs of tiles are merged, and divided by their sums. Letters are those of `flash`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

from moeparity.errors import listed
from moeparity.numerics import cpu, cuda
from moeparity.numerics.fma import fma
from moeparity.numerics.orders import parse
from moeparity.numerics.rounding import rounded
from moeparity.numerics.summation import sum_axis
from moeparity.ops.attention_forms import DIV_FULL, LIBM, LIBM_FMA, SEGMENTS_OF_VLLM
from moeparity.ops.attribute import TRITON, RefusedError
from moeparity.ops.kernels.exponentials import exp, log

WIDTHS: Final = (64, 128)
"""Widths of a head's value whose merge was run."""
_HALF: Final = SEGMENTS_OF_VLLM // 2
_COLUMNS: Final = 4
"""Neighbours that a thread has."""


@dataclass(frozen=True, slots=True)
class Run:
    """The result for some tiles: the normalised output, and the natural logarithm of the sum of exponentials."""

    out: torch.Tensor
    lse: torch.Tensor


@dataclass(frozen=True, slots=True)
class Sums:
    """What some tiles add up to: exponentials times values [B, H, T, V], the highest score and the sum of exponentials
    [B, H, T, 1].
    """

    out: torch.Tensor
    highest: torch.Tensor
    total: torch.Tensor


def merge_segments(runs: Sequence[Sums]) -> torch.Tensor:
    """The attention to all segments, fp32 [B, H, T, V]; up to `SEGMENTS_OF_VLLM`, those that are not there weigh 0.

    A segment leaves its output before the division, its highest score and its sum of exponentials. All are rescaled to
    the highest of all, added up and divided once. The compiler (Triton 3.8.0) contracts one product of every first
    addition: of sums each thread's own, so that halves of a warp divide by other sums; of outputs the one that it came
    upon. vLLM 0.33.0, v1/attention/ops/triton_unified_attention.py reduce_segments (run as PTX).
    """
    width = runs[0].out.shape[-1]
    if width not in WIDTHS or runs[0].out.dtype != torch.float32:
        reason = f"values are {width} wide, and segments were merged of {listed(map(str, WIDTHS))} in fp32."
        raise RefusedError("merge", f"{reason} Set another merge.")
    highest = torch.stack([run.highest for run in runs])
    most = highest.amax(0)
    weights = cuda.triton_exp(highest - finite(most))
    outs, totals = (torch.stack(parts) for parts in zip(*((run.out, run.total) for run in runs), strict=True))
    weights, totals, outs = (_filled(x) for x in (weights, totals, outs))
    total = _totals(weights, totals, width)
    return cuda.div_full(_outputs(weights.expand_as(outs), outs), torch.where(total == 0, 1.0, total))


def _filled(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, x.new_zeros(SEGMENTS_OF_VLLM - len(x), *x.shape[1:])])


def _totals(weights: torch.Tensor, totals: torch.Tensor, width: int) -> torch.Tensor:
    """The sum that each column is divided by: a thread's own product is not rounded, its partner's is."""
    low, high = slice(0, _HALF), slice(_HALF, None)
    lower, upper = (
        _folded(fma(totals[mine], weights[mine], totals[partner] * weights[partner]))
        for mine, partner in ((low, high), (high, low))
    )
    lanes = torch.arange(width, device=totals.device) // _COLUMNS
    return torch.where(lanes % SEGMENTS_OF_VLLM < _HALF, lower, upper)


def _outputs(weights: torch.Tensor, outs: torch.Tensor) -> torch.Tensor:
    """The weighted outputs, added up: of 64 columns first segments 8 apart, of 128 those 4 apart, one product of each
    two contracted.
    """

    def two(contracted: int, plain: int) -> torch.Tensor:
        return fma(outs[contracted], weights[contracted], outs[plain] * weights[plain])

    if outs.shape[-1] == min(WIDTHS):
        pairs = [two(i, i + _HALF) for i in range(_HALF)]
        return _folded(torch.stack([a + b for a, b in zip(pairs[::2], pairs[1::2], strict=True)]))
    place = torch.arange(outs.shape[-1], device=outs.device) % _COLUMNS
    outer, fours = (place == 0) | (place == _COLUMNS - 1), []
    for i in range(SEGMENTS_OF_VLLM // 4):
        # The compiler contracted the later product in the two inner columns of a thread.
        first = torch.where(outer, two(i, i + 4), two(i + 4, i))
        fours.append(first + two(i + 8, i + 12))
    return _folded(torch.stack(fours))


def _folded(x: torch.Tensor) -> torch.Tensor:
    """The sum over the first axis, first half + second half again and again."""
    while len(x) > 1:
        x = x[: len(x) // 2] + x[len(x) // 2 :]
    return x[0]


def finite(highest: torch.Tensor) -> torch.Tensor:
    """The maximum, with 0 in place of -inf (no key seen yet), since -inf - -inf would be NaN."""
    return torch.where(highest == -math.inf, 0.0, highest)


def normalized(out: torch.Tensor, total: torch.Tensor, at: Mapping[str, Any]) -> torch.Tensor:
    """An output divided by its sum of exponentials, as `normalize` says."""
    return out * (1 / total) if at["normalize"] == "reciprocal" else _quotient(out, total, at)


def _quotient(x: torch.Tensor, y: torch.Tensor, at: Mapping[str, Any]) -> torch.Tensor:
    return cuda.div_full(x, y) if at["normalize"] == DIV_FULL and x.dtype == torch.float32 else x / y


def merged(runs: Sequence[Run], at: Mapping[str, Any]) -> torch.Tensor:
    """The outputs of several runs as one, by `merge`."""
    if at["merge"] == "at_once":
        return _at_once(runs, at["splits_order"])
    if at["merge"] == "online":
        return _online(runs, at)
    pairs: Mapping[str, Callable[[Run, Run, torch.dtype], Run]] = {
        LIBM: _pair_of_libm,
        LIBM_FMA: partial(_pair_of_libm, contracted=True),
    }
    pair = pairs.get(at["merge"], _pair)
    total, *others = runs
    for run in others:
        total = pair(total, run, at["split"])
    return total.out


def _at_once(runs: Sequence[Run], order: str) -> torch.Tensor:
    """The result of all runs of keys: each run's output times exp(its log-sum-exp - that of all runs), added up.

    FlashAttention 0251105, combine_attn_seqk_parallel (read).
    """
    lse = torch.stack([run.lse for run in runs])
    highest = finite(lse.amax(0))
    summed = sum_axis(exp(lse - highest), parse("sequential"), 0, accumulate=lse.dtype)
    everything = torch.where(summed == 0, math.inf, log(summed) + highest)
    outs = torch.stack([run.out for run in runs]).to(lse.dtype)
    return sum_axis(outs, parse(order), 0, accumulate=lse.dtype, times=exp(lse - everything))


def _exp_of(at: Mapping[str, Any], dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return cuda.triton_exp if at["exponential"] == TRITON and dtype == torch.float32 else exp


def _online(runs: Sequence[Run], at: Mapping[str, Any]) -> torch.Tensor:
    """Outputs merged one after the other; vLLM 0.33.0 and SGLang 0.5.23, decode_attention's stage 2 (run as PTX)."""
    power = _exp_of(at, runs[0].lse.dtype)
    highest = torch.full_like(runs[0].lse, -math.inf)
    total, out = torch.zeros_like(highest), torch.zeros_like(runs[0].out, dtype=highest.dtype)
    for run in runs:
        before, highest = highest, torch.maximum(highest, run.lse)
        shrunk, weight = power(before - finite(highest)), power(run.lse - finite(highest))
        out = fma(out, shrunk.expand_as(out), run.out.to(out.dtype) * weight)
        total = fma(total, shrunk, weight)
    return _quotient(out, torch.where(total == 0, 1.0, total), at)


def _pair(a: Run, b: Run, stored: torch.dtype) -> Run:
    """Two outputs merged with quotients as weights, then stored; vLLM 0.33.0, merge_attn_states.cu, run as PTX."""
    highest = finite(torch.maximum(a.lse, b.lse))
    single = highest.dtype == torch.float32
    power, logarithm = (cuda.expf, cuda.logf) if single else (torch.exp, torch.log)
    x, y = power(a.lse - highest), power(b.lse - highest)
    total = x + y
    whole = torch.where(total == 0, 1.0, total)
    share_a, share_b = x / whole, y / whole
    out_a, out_b = a.out.to(total.dtype), b.out.to(total.dtype)
    out = fma(out_a, share_a, out_b * share_b)
    return Run(rounded(out, stored), logarithm(total) + highest)


def _pair_of_libm(a: Run, b: Run, stored: torch.dtype, *, contracted: bool = False) -> Run:
    """The same by the C library's exp and log, nothing or the later product contracted; vLLM 0.32.0,
    csrc/cpu/mla_decode.cpp (run: tests/real/test_vllm_cpu.py).
    """
    highest = finite(torch.maximum(a.lse, b.lse))
    x, y = cpu.expf(a.lse - highest), cpu.expf(b.lse - highest)
    total = x + y
    whole = torch.where(total == 0, 1.0, total)
    earlier, later, share = a.out.to(total.dtype) * (x / whole), b.out.to(total.dtype), y / whole
    out = fma(later, share, earlier) if contracted else earlier + later * share
    return Run(rounded(out, stored), cpu.logf(total) + highest)
