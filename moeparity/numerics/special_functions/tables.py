"""Coefficients of the special-function unit, and its squarer.

Each function is a quadratic in the low bits of a significand, with coefficients by its high bits: bcarlet/ptx-math
2c7dc92 (MIT, LICENSE.ptx-math beside this file), which holds for every fp32 input on sm_50 to sm_75, sqrt from sm_60
on, sin and cos from sm_70 on. An H200 (sm_90) has the same (tests/recorded/h200); that other GPUs from sm_80 on have is
inferred: 13.2 % of `rcp` on an A100 differ from the nearest number, as by this table.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import torch

_COLUMNS = (1 << 19) - 1
"""The squarer leaves out these columns of its partial products ..."""
_BITS = 18
_ROWS = 9
"""... of so many rows."""


@cache
def coefficients(function: str, device: torch.device) -> torch.Tensor:
    """int64 [rows, 3]: C0, C1, C2 of each interval."""
    text = files(__package__).joinpath(f"{function}.csv").read_text(encoding="ascii")
    rows = [[int(number) for number in line.split(",")] for line in text.split()]
    return torch.tensor(rows, dtype=torch.int64, device=device)


def quadratic(
    function: str, index: torch.Tensor, low: torch.Tensor, square: torch.Tensor, shifts: tuple[int, int], signs: str
) -> torch.Tensor:
    """C0 << shifts[0] plus or minus C1 low << shifts[1] plus or minus C2 square, int64. signs: `-+` and so on."""
    c0, c1, c2 = coefficients(function, index.device)[index].unbind(-1)
    linear, curved = (c1 * low) << shifts[1], c2 * square
    total = (c0 << shifts[0]) + (linear if signs[0] == "+" else -linear)
    return total + (curved if signs[1] == "+" else -curved)


def square(x: torch.Tensor) -> torch.Tensor:
    """x * x of integers of up to 18 bits, int64, less what the left-out columns would add (squarer.c)."""
    return _squares(x.device)[x]


@cache
def _squares(device: torch.device) -> torch.Tensor:
    """Of all such integers: one look-up takes far less time than the partial products of a number."""
    x = torch.arange(1 << _BITS, device=device)
    left_out = _spread(x) & _COLUMNS
    for row in range(_ROWS):
        partial = (x << (row + 1)) & ~((1 << (2 * row + 2)) - 1) & _COLUMNS
        left_out = left_out + partial * (x >> row & 1)
    return x * x - left_out


def _spread(x: torch.Tensor) -> torch.Tensor:
    """The bits of x spread to even places; of 16 bits only, since higher ones fall on columns that are kept."""
    x = x & 0xFFFF
    for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        x = (x | x << shift) & mask
    return x
