"""Finds out how a record is rounded from its numbers: to this many decimals, or to a dtype.

Engines write log-probabilities in fp32, rounded to 16 bits, or with a few decimals. A difference smaller than the last
digit can express is no difference.
"""

from __future__ import annotations

import torch
from torch import Tensor

ARITHMETIC = 2.0**-20
"""In nats: half a step of fp32 between 16 and 32, the rounding of the difference of a logit and a log-sum."""

DECIMALS = range(1, 9)
"""The numbers of decimals that are looked for. Numbers without decimals are not rounded log-probabilities; nine and
more decimals are a dtype's numbers in full.
"""

_SHORTEST = 9
"""This many digits distinguish any two numbers of fp32; programs that print fp32 write no more."""

_CHANCE = 1e-3
"""A rounding is believed if unrounded numbers would look rounded with a smaller probability than this."""


def half_units(values: Tensor) -> tuple[Tensor, str]:
    """Half a unit of the last digit of each recorded value, fp64 [N] in nats, and how the record is rounded, in words.

    values: fp64 [N], finite. A rounding is accepted if all values have it and there are enough of them to exclude
    chance; zeros count for nothing. `ARITHMETIC` is added to each half unit.
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
    """The fewest decimals that all values have, possibly stored in fp32 after that; None if that can't be told."""
    if bool((values == values.round()).all()):
        return None
    in_fp32 = bool((values.float().double() == values).all())
    for count in DECIMALS:
        grid = (values * 10.0**count).round() / 10.0**count
        if bool(((grid == values) | ((grid.float() == values) & in_fp32)).all()):
            # By chance, one in ten numbers with one more decimal ends in 0; for fp32 whose steps exceed a decimal, all
            # do.
            chances = (_step(values, torch.float32) * 10.0**count * in_fp32).clamp(0.1, 1)
            return count if float(chances.prod()) < _CHANCE else None
    return None


def _rounded_to(values: Tensor, dtype: torch.dtype, written: float) -> bool:
    """Whether all values are numbers of `dtype`, possibly rounded once more, by up to `written` nats, when they were
    written.
    """
    if bool(((values.to(dtype).double() - values).abs() > written).any()):
        return False
    # If the decimals are coarser than the steps of the dtype, every number is near one of the dtype's numbers.
    chances = (2 * written + _step(values, torch.float32)) / _step(values, dtype)
    return float(chances.clamp(max=1).prod()) < _CHANCE


def _of_fp32(values: Tensor) -> bool:
    """Whether all values are numbers of fp32, in full or with the digits that distinguish them."""
    scale = 10.0 ** (_SHORTEST - 1 - values.abs().log10().floor()).clamp(max=22)
    exact = (values.float().double() == values).all()
    shortest = ((values * scale).round() / scale == values).all()
    return bool(values.numel()) and bool(exact | shortest)


def _step(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance between neighbouring numbers of a dtype around each value, fp64 as `values`."""
    info = torch.finfo(dtype)
    return info.eps * torch.exp2(values.abs().clamp(min=info.tiny).log2().floor())
