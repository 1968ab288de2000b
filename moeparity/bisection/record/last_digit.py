"""How a record is rounded, read off its numbers: to so many decimals, or to a dtype.

Engines write log-probabilities in fp32, rounded to 16 bits, or with a few decimals. What the last digit cannot say is
no difference.
"""

from __future__ import annotations

import torch
from torch import Tensor

ARITHMETIC = 2.0**-20
"""In nats, half a step of fp32 between 16 and 32: what the difference of a logit and a log-sum is rounded by."""

DECIMALS = range(1, 9)
"""Numbers without decimals are no rounded log-probabilities; with nine and more they are some dtype's, in full."""

_SHORTEST = 9
"""So many digits tell any two numbers of fp32 apart: what prints them writes no more."""

_CHANCE = 1e-3
"""A rounding is believed where numbers that lack it would look like it more seldom than this."""


def half_units(values: Tensor) -> tuple[Tensor, str]:
    """Half a unit of the last digit of each recorded value, in nats, and how the record is rounded, in words.

    values fp64 [N], finite; the first result fp64 [N]. A rounding is taken where all values keep it, and where their
    number and size say so: zeros say nothing. `ARITHMETIC` is added to each.
    """
    distinct = torch.unique(values[values != 0])
    decimals = _decimals(distinct)
    written = 0.0 if decimals is None else 0.5 * 10.0**-decimals
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        if _rounded_to(distinct, dtype, written):
            exact = bool((distinct.to(dtype).double() == distinct).all())
            unit = _step(values, dtype) / 2 + (0.0 if exact else written)
            return unit + ARITHMETIC, name if exact else f"{name}, written with {decimals} decimals"
    if decimals is not None:
        return torch.full_like(values, written + ARITHMETIC), f"{decimals} decimal{'s' * (decimals > 1)}"
    if _of_fp32(distinct):
        return _step(values, torch.float32) / 2 + ARITHMETIC, "fp32"
    return torch.full_like(values, ARITHMETIC), "fp64"


def _decimals(values: Tensor) -> int | None:
    """The fewest decimals that all values keep, also where they were stored in fp32; None where there is no telling."""
    if bool((values == values.round()).all()):
        return None
    in_fp32 = bool((values.float().double() == values).all())
    for count in DECIMALS:
        grid = (values * 10.0**count).round() / 10.0**count
        if bool(((grid == values) | ((grid.float() == values) & in_fp32)).all()):
            # One in ten numbers with one decimal more ends in 0; of fp32, all whose steps are wider than a decimal.
            chances = (_step(values, torch.float32) * 10.0**count * in_fp32).clamp(0.1, 1)
            return count if float(chances.prod()) < _CHANCE else None
    return None


def _rounded_to(values: Tensor, dtype: torch.dtype, written: float) -> bool:
    """Whether the values are those of a dtype, or such as were `written` with a rounding of their own, in nats."""
    if bool(((values.to(dtype).double() - values).abs() > written).any()):
        return False
    # Where decimals are coarser than the steps of the dtype, every number is near one of its own.
    chances = (2 * written + _step(values, torch.float32)) / _step(values, dtype)
    return float(chances.clamp(max=1).prod()) < _CHANCE


def _of_fp32(values: Tensor) -> bool:
    """Whether all values are numbers of fp32, in full or with the digits that tell them apart."""
    scale = 10.0 ** (_SHORTEST - 1 - values.abs().log10().floor()).clamp(max=22)
    exact = (values.float().double() == values).all()
    shortest = ((values * scale).round() / scale == values).all()
    return bool(values.numel()) and bool(exact | shortest)


def _step(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance of neighbouring numbers of a dtype around each value, fp64 as `values`."""
    info = torch.finfo(dtype)
    return info.eps * torch.exp2(values.abs().clamp(min=info.tiny).log2().floor())
