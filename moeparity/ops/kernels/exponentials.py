"""exp, exp2 and log whose bits depend on no library; sigmoid, silu and softmax step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from moeparity.numerics import cpu, cuda
from moeparity.numerics.joined_steps import Apply, call
from moeparity.numerics.orders import NATIVE, parse
from moeparity.numerics.rounding import wide, working
from moeparity.numerics.special_functions.functions import approximate
from moeparity.numerics.summation import sum_axis
from moeparity.ops.attention_forms import OF_SCORES
from moeparity.ops.attribute import EXACT, FOLDED, TRITON

CUDA_FAST, INDUCTOR, U20, SLEEF = "cuda_fast", "inductor", "u20", "sleef"
"""The forms of CUDA's functions under -use_fast_math, which also flushes subnormal numbers to zero, of CUDA's exp with
Triton's quotient, of torch's exp_u20 for AVX-512, and of Sleef's expf."""


def exp(x: torch.Tensor) -> torch.Tensor:
    """exp in x's dtype, fp32 or fp64. In fp32 it is correctly rounded, except for about one fp64 result in 2^28."""
    return _by_fp64(torch.exp, x)


def exp2(x: torch.Tensor) -> torch.Tensor:
    """2 to the power x: in fp32 as an H200's `ex2.approx.ftz`, in fp64 torch's."""
    return cuda.ex2(x) if x.dtype == torch.float32 else torch.exp2(x)


def log(x: torch.Tensor) -> torch.Tensor:
    """The natural logarithm, with the accuracy of `exp`."""
    return _by_fp64(torch.log, x)


def _by_fp64(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return function(x.double()).to(x.dtype)


def root(x: torch.Tensor) -> torch.Tensor:
    """The square root, correctly rounded but for fp64 results half way between two of fp32."""
    return _by_fp64(torch.sqrt, x)


class Functions(NamedTuple):
    """exp, log, root and quotient of fp32, or of fp64, as one library has them."""

    exp: Callable[[torch.Tensor], torch.Tensor]
    log: Callable[[torch.Tensor], torch.Tensor]
    root: Callable[[torch.Tensor], torch.Tensor]
    divided: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


TORCH = Functions(torch.exp, torch.log, torch.sqrt, torch.div)
FUNCTIONS: Mapping[str, Functions] = {
    NATIVE: TORCH,
    EXACT: Functions(exp, log, root, torch.div),
    TRITON: Functions(cuda.triton_exp, cuda.logf, partial(approximate, "sqrt"), cuda.div_full),
}
"""By name; of fp64 all are torch's."""


def functions_of(name: str, dtype: torch.dtype) -> Functions:
    """The functions of that name for a dtype."""
    return FUNCTIONS[name] if dtype == torch.float32 else TORCH


def sigmoid(x: torch.Tensor, form: str, apply: Apply = call) -> torch.Tensor:
    """The sigmoid by `form`: torch's own kernel in x's dtype, or 1 / (1 + exp(-x)) in fp32 or fp64, each step
    rounded.
    """
    if form == NATIVE:
        return apply(torch.sigmoid, x)
    denominator = 1 + _exp(-wide(x), form)
    return _quotient(torch.ones_like(denominator), denominator, form)


def softplus(x: torch.Tensor, form: str, functions: Functions = TORCH) -> torch.Tensor:
    """softplus by `form`: torch's own kernel in x's dtype; or log(1 + exp(x)) in fp32 or fp64, each step rounded, and x
    itself above 20; above 0 x + log(1 + exp(-x)) where it is `folded`.
    """
    if form == NATIVE:
        return F.softplus(x)
    x = wide(x)
    total = functions.log(1.0 + functions.exp(-x.abs() if form == FOLDED else x))
    return torch.where(x > 20.0, x, x.clamp(min=0.0) + total if form == FOLDED else total)


def silu(x: torch.Tensor, form: str, apply: Apply = call) -> torch.Tensor:
    """silu by `form`: torch's own; x times the written sigmoid (`u20`, `sleef`); or x / (1 + exp(-x)), each step
    rounded.
    """
    if form == NATIVE:
        return apply(F.silu, x)
    if form in (U20, SLEEF):
        return wide(x) * sigmoid(x, form)
    return _quotient(wide(x), 1 + _exp(-wide(x), form), form)


def _exp(x: torch.Tensor, form: str) -> torch.Tensor:
    """exp in the form that `logistic` names; for fp64 it is torch's."""
    functions = {
        "cuda": cuda.expf, INDUCTOR: cuda.expf, CUDA_FAST: cuda.fast_expf, TRITON: cuda.triton_exp,
        U20: cpu.exp_u20, SLEEF: cpu.sleef_exp,
    }  # fmt: skip
    return functions.get(form, torch.exp)(x) if x.dtype == torch.float32 else torch.exp(x)


def _quotient(a: torch.Tensor, b: torch.Tensor, form: str) -> torch.Tensor:
    """a / b in the form that `logistic` names; for fp64 it is torch's."""
    functions = {CUDA_FAST: cuda.fast_divide, INDUCTOR: cuda.div_full, TRITON: cuda.div_full}
    return functions.get(form, torch.div)(a, b) if b.dtype == torch.float32 else a / b


def softmax(scores: torch.Tensor, step: torch.dtype, at: Mapping[str, Any]) -> torch.Tensor:
    """Softmax over the last axis in `step`, fp32 or fp64, in the form that the node's `softmax` names.

    The written-out forms imitate: `divide`, ATen's SoftMax.cu (read; without exp's own bits); `reciprocal` with
    `sleef`, ATen's kernel on CPU (compared with torch 2.13.0 on AVX2; that AVX-512 is the same was read).
    """
    if at["softmax"] == OF_SCORES:
        return F.softmax(scores, dim=-1)
    if at["softmax"] == NATIVE:
        return F.softmax(scores, dim=-1, dtype=step)
    x = scores.to(step)
    x = x - x.amax(-1, keepdim=True)
    e = cpu.sleef_exp(x) if at["exp"] == SLEEF and step == torch.float32 else exp(x)
    total = row_sum(e, at["denominator"])
    return e / total if at["softmax"] == "divide" else e * (1 / total)


def row_sum(x: torch.Tensor, order: str) -> torch.Tensor:
    """The sum over the last axis, which is kept with one element; additions are in x's dtype, fp32 or fp64."""
    if order == NATIVE:
        return x.sum(-1, keepdim=True)
    return sum_axis(x, parse(order), -1, accumulate=working(x.dtype)).unsqueeze(-1)
