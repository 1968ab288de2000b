"""Attention and its parts one number at a time, in numpy's fp32 scalars and exact fractions; no torch, no moeparity.

The data must make the dot products exact: what is evaluated here is everything else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from tests.numerics import cpu_scalar, cuda_scalar

F32 = np.float32
Sum = Callable[[Sequence[F32]], F32]


def exactly(x: Fraction) -> F32:
    """A fraction in fp32's normal range rounded to nearest even."""
    near = F32(float(x))
    around = (F32(np.nextafter(near, F32(-math.inf))), near, F32(np.nextafter(near, F32(math.inf))))
    return min(around, key=lambda y: (abs(Fraction(float(y)) - x), int(y.view(np.int32)) & 1))


HALF, BELOW = 1 << 28, (1 << 29) - 1
"""Of the 29 bits that a double has more than fp32: those of a number half way between two, and all of them."""


def fma(a: F32, b: F32, c: F32) -> F32:
    """Rounded once. The product is exact in fp64; rounding the sum there moves it past no number half way between two
    of fp32, since these are in fp64: unless it lies on one, it may be rounded again.
    """
    twice = np.float64(a) * np.float64(b) + np.float64(c)
    if 2.0**-126 <= abs(twice) < 2.0**127 and int(twice.view(np.int64)) & BELOW != HALF:
        return F32(twice)
    return exactly(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))


def bf16(x: F32) -> F32:
    """Rounded to nearest even in bf16."""
    bits = int(np.asarray(x, F32).view(np.uint32))
    bits += 0x7FFF + ((bits >> 16) & 1)
    return F32(np.array(bits & 0xFFFF0000, np.uint32).view(F32))


def fp16(x: F32) -> F32:
    return F32(np.float16(x))


def fp32(x: F32) -> F32:
    return x


def tf32(x: F32) -> F32:
    """Rounded to 10 bits of mantissa, to nearest, ties away from zero."""
    if x == 0:
        return x
    exponent = math.floor(math.log2(abs(float(x))))
    steps = math.floor(abs(float(x)) / 2.0 ** (exponent - 10) + 0.5)
    return F32(math.copysign(steps * 2.0 ** (exponent - 10), float(x)))


ROUND: dict[str, Callable[[F32], F32]] = {"bf16": bf16, "fp16": fp16, "fp32": fp32}


def exp(x: F32) -> F32:
    return F32(math.exp(float(x)))


def triton_exp(x: F32) -> F32:
    """ex2.approx of x * log2(e), without a flush."""
    return F32(cuda_scalar.ex2(float(x * F32(1.4426950408889634))))


def exp2(x: F32) -> F32:
    """By an H200's table, which tests/numerics/special_functions holds to what one computed."""
    return F32(cuda_scalar.ex2(float(x)))


def in_turn(terms: Sequence[F32]) -> F32:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def from_the_end(terms: Sequence[F32]) -> F32:
    return in_turn(terms[::-1])


SUM: dict[str, Sum] = {"sequential": in_turn, "reverse": from_the_end}


@dataclass
class Run:
    out: list[F32]
    lse: F32 | None


def tiles_of(keys: range, block: int) -> list[range]:
    return [keys[first : first + block] for first in range(0, len(keys), block)]


def runs_of(query: int, length: int, window: int, at: dict[str, Any]) -> list[list[range]]:
    """The runs of key tiles that one query attends to, by the arithmetic of the kernels that cut them."""
    block, splits = at["kv_block"], at["splits"]
    tiles = tiles_of(range(length), block)
    if splits == "fixed":
        return [tiles_of(run, block) for run in tiles_of(range(length), at["split_keys"])]
    if splits == "shared":
        prefix = at["shared_keys"]
        tail = [tiles_of(range(prefix, length), block)] if query >= prefix else []
        return [tiles_of(range(min(prefix, length)), block), *tail]
    if splits == 1 or at["split_by"] == "tiles":
        low, high = 0, len(tiles)
    else:
        mate = query // at["q_block"] * at["q_block"]
        first, last = max(0, mate - (window - 1)), min(mate + at["q_block"], length)
        if at["split_by"] == "keys":
            each = math.ceil(math.ceil((last - first) / splits) / at["split_unit"]) * at["split_unit"]
            cut = [range(first + i * each, min(first + (i + 1) * each, last)) for i in range(splits)]
            return [tiles_of(run, block) for run in cut if len(run)]
        low, high = first // block, math.ceil(last / block)
    each = math.ceil((high - low) / splits)
    tile_runs = [tiles[low + i * each : min(low + (i + 1) * each, high)] for i in range(splits)]
    return [run for run in tile_runs if run]


def flash_row(
    scores: Sequence[F32 | None],
    v: np.ndarray,
    scale: float,
    at: dict[str, Any],
    runs: Sequence[Sequence[range]],
    sink: F32 | None = None,
) -> list[F32]:
    """One query: its scores (None: hidden), values [T, V] fp32, its `runs_of` tiles -> its output, in `output`."""
    runs_done = [attend(scores, v, scale, run, at, sink if i == 0 else None) for i, run in enumerate(runs)]
    done = runs_done[0].out
    if sink is not None and at["sink"] == "rescale":
        store, lse = ROUND[at["output"]], runs_done[0].lse
        share = F32(0) if lse is None else F32(1 / (1 + math.exp(-float(lse - sink))))
        return [store(store(x) * store(share)) for x in done]
    if len(runs) > 1 or at["splits"] not in {1, "shared"}:
        store = ROUND[at["split"]]
        runs_done = [Run([store(x) for x in run.out], run.lse) for run in runs_done]
        done = {"at_once": merged_at_once, "online": merged_online}.get(at["merge"], merged_in_pairs)(runs_done, at)
    return [ROUND[at["output"]](x) for x in done]


def dot(a: Sequence[F32], b: Sequence[F32], order: str, start: F32 | None = None) -> F32:
    """A query times a key, or exponentials times a column of v, added in turn, contracted or not, or from the end."""
    pairs = list(zip(a, b, strict=True))
    if order == "sequential(fma)":
        total = pairs.pop(0) if start is None else start
        total = total[0] * total[1] if isinstance(total, tuple) else total
        for x, y in pairs:
            total = fma(x, y, total)
        return total
    terms = [x * y for x, y in pairs]
    terms = terms[::-1] if order == "reverse" else terms
    return in_turn(terms if start is None else [start, *terms])


def values_sum(before: F32, weighted: Sequence[tuple[F32, F32]], order: str) -> F32:
    """A tile's exponentials times v added to what came before; in `native` data only one product is not 0."""
    if order == "native":
        return before + in_turn([x * y for x, y in weighted])
    return dot([x for x, _ in weighted], [y for _, y in weighted], order, before)


def attend(
    scores: Sequence[F32 | None],
    v: np.ndarray,
    scale: float,
    tiles: Sequence[range],
    at: dict[str, Any],
    sink: F32 | None = None,
) -> Run:
    form, sum_of = at["exponential"], SUM[at["row_sum"]]
    store = ROUND[at["probabilities"]] if at["tf32"] == "no" else lambda x: tf32(ROUND[at["probabilities"]](x))
    # Queries that are scaled leave nothing to scale.
    scale = 1.0 if at["scale_on"] == "query" else scale
    factor = F32(scale * 1.4426950408889634)
    natural = form in {"exp", "triton", "u20"}
    powers = {"u20": (cpu_scalar.exp_u20, cpu_scalar.expf), "triton": (triton_exp, triton_exp)}
    of_score, of_maximum = powers.get(form, (exp, exp))
    highest: F32 | None = None
    total, out = F32(0), [F32(0)] * v.shape[1]
    if sink is not None and at["sink"] == "start":
        highest, total = sink, F32(1)
    for tile in tiles if at["kv_order"] == "ascending" else tiles[::-1]:
        tile_scores = {j: s * F32(scale) if natural else s for j in tile if (s := scores[j]) is not None}
        if not tile_scores:
            continue
        new = max(tile_scores.values()) if highest is None else max(highest, *tile_scores.values())
        if highest is not None and (new - highest) * (F32(1) if natural else factor) <= at["rescale_above"]:
            new = highest
        if natural:
            p = {j: of_score(s - new) for j, s in tile_scores.items()}
            shrunk = F32(0) if highest is None else of_maximum(highest - new)
        else:
            most = new * factor
            folded = form == "exp2_fma"
            p = {j: exp2(fma(s, factor, -most) if folded else s * factor - most) for j, s in tile_scores.items()}
            before = new if highest is None else highest
            shrunk = exp2((before - new) * factor if folded else before * factor - most)
            shrunk = F32(0) if highest is None else shrunk
        highest = new
        summed = sum_of([p.get(j, F32(0)) for j in tile])
        total = fma(total, shrunk, summed) if at["contraction"] == "sum" else total * shrunk + summed
        for c in range(len(out)):
            weighted = [(store(x), v[j, c]) for j, x in p.items()]
            out[c] = values_sum(out[c] * shrunk, weighted, at["values_order"])
    if highest is None:
        return Run(out, None)
    if sink is not None and at["sink"] == "end":
        if natural:
            total = total + of_score(sink - highest)
        else:
            log2e, most = F32(1.4426950408889634), highest * factor
            total = total + exp2(fma(sink, log2e, -most) if form == "exp2_fma" else sink * log2e - most)
    lse = (highest if natural else highest * F32(scale)) + F32(math.log(float(total)))
    if at["normalize"] == "reciprocal":
        return Run([x * (F32(1) / total) for x in out], lse)
    return Run([x / total for x in out], lse)


def merged_at_once(runs: Sequence[Run], at: dict[str, Any]) -> list[F32]:
    run_lses = [run.lse for run in runs if run.lse is not None]
    if not run_lses:
        return runs[0].out
    highest = max(run_lses)
    everything = F32(math.log(float(in_turn([exp(lse - highest) for lse in run_lses])))) + highest
    weights = [F32(0) if run.lse is None else exp(run.lse - everything) for run in runs]
    done = []
    for c in range(len(runs[0].out)):
        terms = [(run.out[c], weight) for run, weight in zip(runs, weights, strict=True)]
        if at["splits_order"] == "sequential(fma)":
            total = terms[0][0] * terms[0][1]
            for x, weight in terms[1:]:
                total = fma(x, weight, total)
        else:
            total = SUM[at["splits_order"]]([x * weight for x, weight in terms])
        done.append(total)
    return done


def merged_online(runs: Sequence[Run], at: dict[str, Any]) -> list[F32]:
    highest, total, out = None, F32(0), [F32(0)] * len(runs[0].out)
    for run in runs:
        if run.lse is None:
            continue
        new = run.lse if highest is None else max(highest, run.lse)
        shrunk = F32(0) if highest is None else exp(highest - new)
        weight, highest = exp(run.lse - new), new
        out = [fma(done, shrunk, x * weight) for x, done in zip(run.out, out, strict=True)]
        total = fma(total, shrunk, weight)
    return out if highest is None else [x / total for x in out]


def merged_in_pairs(runs: Sequence[Run], at: dict[str, Any]) -> list[F32]:
    first, store = runs[0], ROUND[at["split"]]
    power, logarithm = (cuda_exp, cuda_log) if at["merge"] == "pairwise" else (cpu_scalar.expf, cpu_scalar.logf)
    added = PAIRS[at["merge"]]
    for run in runs[1:]:
        if first.lse is None or run.lse is None:
            first = run if first.lse is None else first
            continue
        highest = max(first.lse, run.lse)
        x, y = (power(lse - highest) for lse in (first.lse, run.lse))
        left, right = x / (x + y), y / (x + y)
        out = [store(added(a, left, b, right)) for a, b in zip(first.out, run.out, strict=True)]
        first = Run(out, logarithm(x + y) + highest)
    return first.out


def cuda_exp(x: F32) -> F32:
    return F32(cuda_scalar.expf(float(x)))


def cuda_log(x: F32) -> F32:
    return F32(cuda_scalar.logf(float(x)))


PAIRS: dict[str, Callable[[F32, F32, F32, F32], F32]] = {
    "pairwise": lambda a, left, b, right: fma(a, left, b * right),
    "libm": lambda a, left, b, right: a * left + b * right,
    "libm_fma": lambda a, left, b, right: fma(b, right, a * left),
}
"""The sum of two runs' outputs times their weights."""
