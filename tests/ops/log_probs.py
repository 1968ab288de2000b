"""The log-softmax one number at a time, in fp32 or fp64 arithmetic; torch's own exp, log and fused kernels aside.

No moeparity. One operation of two fp32 numbers, formed in fp64 and rounded, is that operation rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.numerics.scalar import FP64, nearest
from tests.ops.plain import BF16, FP16, FP32, random
from tests.ops.scalar import bf16, fp16, fp32

Row = list[float]
ROUNDINGS = {BF16: bf16, FP16: fp16, FP32: fp32}
DEFAULTS: dict[str, Any] = {
    "form": "shifted",
    "temperature": 1.0,
    "soft_cap": 0.0,
    "capped": FP32,
    "inputs": FP32,
    "logit_bias": "ignored",
    "bias_form": "named",
    "bias_place": "first",
    "bad_words": "ignored",
    "bad_words_form": "filled",
    "bad_words_tokens": "text",
    "allowed_token_ids": "ignored",
    "min_tokens": "ignored",
    "min_tokens_form": "filled",
    "grammar": "ignored",
    "grammar_form": "filled",
    "repetition_penalty": 1.0,
    "repetition_form": "divide",
    "repetition_tokens": "text",
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "subtracted": "last",
    "division": "divide",
    "scaled": FP32,
    "top_k": 0,
    "top_k_ties": "all",
    "top_p": 1.0,
    "sorted": "all",
    "kept_mass": FP32,
    "min_p": 0.0,
    "min_p_place": "first",
    "min_p_form": "probabilities",
    "order": "native",
    "block": 0,
    "tensor": 1,
    "parallel": "vocabulary",
    "collective": "none",
    "ranks": "sequential",
    "output": FP32,
}


def logits(vocabulary: int, dtype: torch.dtype, *, tokens: int = 5, seed: int = 0) -> Tensor:
    """[2, tokens, V]: the greatest stands early or late and is 0.4 above the logsumexp of all others, so that every bit
    of the sum shows in its own log-probability; one is so low that its exponential vanishes.
    """
    x = random(2, tokens, vocabulary, dtype=FP32, seed=seed) * 2.5
    highest = x.logsumexp(-1) + 0.4
    x[0, :, 1], x[1, :, -2], x[..., 5] = highest[0], highest[1], -110.9
    return x.to(dtype)


def step_of(at: dict[str, Any]) -> torch.dtype:
    last = at["inputs"] if at["temperature"] == 1 else at["scaled"]
    return FP64 if FP64 in (last, at["output"]) else FP32


def rounded(x: float, step: torch.dtype) -> float:
    return x if step == FP64 else float(np.float32(x))


def into(x: float, dtype: torch.dtype) -> float:
    """As torch casts: to 16 bits by way of fp32."""
    return x if dtype == FP64 else float(ROUNDINGS[dtype](np.float32(x)))


def exp(xs: Sequence[float], step: torch.dtype) -> Row:
    powers: Row = torch.tensor(xs, dtype=step).exp().tolist()
    return powers


def log(x: float, step: torch.dtype) -> float:
    return torch.tensor(x, dtype=step).log().item()


def over_temperature(x: float, at: dict[str, Any]) -> float:
    return divided(into(x, at["inputs"]), at["temperature"], at["division"], at["inputs"], at["scaled"])


@lru_cache(maxsize=1 << 16)
def divided(x: float, temperature: float, division: str, inputs: torch.dtype, scaled: torch.dtype) -> float:
    """Of the same numbers in every test."""
    if temperature == 1:
        return x
    step = FP64 if FP64 in (inputs, scaled) else FP32
    divisor, reciprocal, inverse = rounded_temperature(temperature, step)
    exact = (
        Fraction(x) / divisor if division == "divide" else Fraction(x) * {"inverse": inverse}.get(division, reciprocal)
    )
    return into(nearest(exact, step), scaled)


@lru_cache
def rounded_temperature(temperature: float, step: torch.dtype) -> tuple[Fraction, Fraction, Fraction]:
    """The temperature and its reciprocal, each in `step`; and its quotient in fp64, in `step`."""
    divisor = Fraction(nearest(temperature, step))
    return divisor, Fraction(nearest(1 / divisor, step)), Fraction(nearest(Fraction(1 / temperature), step))


def in_turn(terms: Row, step: torch.dtype) -> float:
    total = terms[0]
    for term in terms[1:]:
        total = rounded(total + term, step)
    return total


def folded(terms: Row, step: torch.dtype, *, neighbours: bool) -> float:
    row = terms + [0.0] * ((1 << (len(terms) - 1).bit_length()) - len(terms))
    while len(row) > 1:
        half = len(row) // 2
        pairs = zip(row[::2], row[1::2], strict=True) if neighbours else zip(row[:half], row[half:], strict=True)
        row = [rounded(a + b, step) for a, b in pairs]
    return row[0]


def kahan(terms: Row, step: torch.dtype) -> float:
    total, lost = terms[0], 0.0
    for term in terms[1:]:
        mended = rounded(term - lost, step)
        new = rounded(total + mended, step)
        total, lost = new, rounded(rounded(new - total, step) - mended, step)
    return total


def in_lanes(terms: Row, step: torch.dtype) -> float:
    return folded([in_turn(terms[i::8], step) for i in range(min(8, len(terms)))], step, neighbours=False)


def in_blocks(terms: Row, step: torch.dtype) -> float:
    return in_turn([in_turn(terms[i : i + 16], step) for i in range(0, len(terms), 16)], step)


def in_threads(terms: Row, step: torch.dtype) -> float:
    """32 threads that walk over vectors of 4, each from 0, then a butterfly from the halves down."""
    per_thread = [0.0] * 32
    for i, term in enumerate(terms):
        thread = i // 4 % 32
        per_thread[thread] = rounded(per_thread[thread] + term, step)
    return folded(per_thread, step, neighbours=False)


Sum = Callable[[Row, torch.dtype], float]
SUMS: dict[str, Sum] = {
    "native": lambda terms, step: torch.tensor(terms, dtype=step).sum(-1).item(),
    "sequential": in_turn,
    "reverse": lambda terms, step: in_turn(terms[::-1], step),
    "fold_hi": lambda terms, step: folded(terms, step, neighbours=False),
    "fold_lo": lambda terms, step: folded(terms, step, neighbours=True),
    "sequential(kahan)": kahan,
    "lanes(8) | fold_hi": in_lanes,
    "blocks(16) | sequential": in_blocks,
    "threads(32, vector=4) | fold_hi": in_threads,
}
RANKS: dict[str, Sum] = {
    **{name: SUMS[name] for name in ("sequential", "reverse", "fold_hi", "fold_lo")},
    "tree(2+0+3+1)": lambda sums, step: in_turn([sums[rank] for rank in (2, 0, 3, 1)], step),
}
# Ten tokens on four ranks: gloo and NCCL's ring cut them after the fourth and the eighth; NCCL's tree is a chain here.
COLLECTIVES: dict[str, Sequence[tuple[int, ...]]] = {
    "gloo.all_reduce": ((3, 2, 1, 0), (0, 3, 2, 1), (1, 0, 3, 2)),
    "nccl.ring": ((1, 2, 3, 0), (2, 3, 0, 1), (3, 0, 1, 2)),
    "nccl.tree": ((3, 2, 1, 0),) * 3,
}


def over_ranks(row: Row, at: dict[str, Any], token: int) -> Row:
    """(x - max) - log sum, the vocabulary cut as torch.chunk cuts it."""
    step, size, highest = step_of(at), -(-len(row) // at["tensor"]), max(row)
    shifted = [rounded(x - highest, step) for x in row]
    sums = [SUMS[at["order"]](exp(shifted[i : i + size], step), step) for i in range(0, len(row), size)]
    if at["tensor"] == 1:
        (total,) = sums
    elif at["collective"] == "none":
        total = RANKS[at["ranks"]](sums, step)
    else:
        total = in_turn([sums[rank] for rank in COLLECTIVES[at["collective"]][token // 4]], step)
    added = log(total, step)
    return [rounded(x - added, step) for x in shifted]


def block_by_block(row: Row, at: dict[str, Any]) -> Row:
    step, size = step_of(at), at["block"] or len(row)
    highest, added = -math.inf, 0.0
    for start in range(0, len(row), size):
        block = row[start : start + size]
        new = max(highest, *block)
        block_sum = SUMS[at["order"]](exp([rounded(x - new, step) for x in block], step), step)
        (shrunk,) = exp([rounded(highest - new, step)], step)
        added = rounded(rounded(shrunk * added, step) + block_sum, step) if start else block_sum
        highest = new
    if at["form"] == "shifted":
        return [rounded(rounded(x - highest, step) - log(added, step), step) for x in row]
    log_sum = rounded(log(added, step) + highest, step)
    return [rounded(x - log_sum, step) for x in row]


def expected(x: Tensor, **choices: Any) -> Tensor:
    at = DEFAULTS | choices
    rows = [[over_temperature(value, at) for value in row] for row in x.double().view(-1, x.shape[-1]).tolist()]
    wide = torch.tensor(rows, dtype=step_of(at))
    if at["form"] == "log_softmax":
        rows = wide.log_softmax(-1).tolist()
    elif at["form"] == "log_of_softmax":
        rows = wide.softmax(-1).log().tolist()
    elif at["form"] == "shifted" and not at["block"]:
        rows = [over_ranks(row, at, token) for token, row in enumerate(rows)]
    elif at["block"] or at["order"] != "native":
        rows = [block_by_block(row, at) for row in rows]
    else:
        sums = wide.logsumexp(-1).tolist()
        rows = [[rounded(x - total, step_of(at)) for x in row] for row, total in zip(rows, sums, strict=True)]
    least = torch.finfo(at["output"]).min if at["form"] == "log_of_softmax" else -math.inf
    done = [[max(least, into(value, at["output"])) for value in row] for row in rows]
    return torch.tensor(done, dtype=FP64).to(at["output"]).view(x.shape)
