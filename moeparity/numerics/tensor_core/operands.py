"""Factors of a matrix product as exact values with the exponents that a tensor core reads from their bits."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from moeparity.numerics.tensor_core.formats import FORMATS, InputFormat
from moeparity.numerics.tensor_core.instructions import Instruction, Scales

ABSENT = -(1 << 13)
"""Exponent of a zero, which takes no part in the largest exponent, alone or in a product."""

_SCALE_LEAST = {"ue8m0": -127, "ue4m3": -6}
_NO_SCALE = -126
"""Exponent of a scale of zero (MMA-Sim; not recorded)."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One side of a product, K first.

    values: fp64 [K, batch, rows]. exponents: int16, like values. scales: of groups of 16, with K / 16 in place of K;
    None where an instruction has none.
    """

    values: torch.Tensor
    exponents: torch.Tensor
    scales: Operand | None = None

    def part(self, batch: slice, rows: slice) -> Operand:
        """Some of the batch, or all of it if it is one, and some of the rows."""
        batch = batch if self.values.shape[1] > 1 else slice(None)
        scales = None if self.scales is None else self.scales.part(batch, rows)
        return Operand(self.values[:, batch, rows], self.exponents[:, batch, rows], scales)


def exponents(x: torch.Tensor, least: int) -> torch.Tensor:
    """Exponents of fp64 numbers, int16: `least` for smaller ones, `ABSENT` for zeros, 0 for infinity and NaN."""
    field = (x.view(torch.int64) >> 52 & 0x7FF) - 1023
    field = field.clamp(min=least).masked_fill(field == 1024, 0)
    return field.masked_fill(x == 0, ABSENT).to(torch.int16)


def power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """2^exponent as fp64, of integers from -1022 to 1023."""
    return ((exponent.to(torch.int64) + 1023) << 52).view(torch.float64)


def operand(instruction: Instruction, x: torch.Tensor, scales: torch.Tensor | None, name: str) -> Operand:
    """x [K, batch, rows], with scales [K / block, batch, rows] -> what the instruction multiplies. name: `a` or `b`.

    Raises ValueError if x holds numbers that the format lacks.
    """
    format_ = FORMATS[instruction.a if name == "a" else instruction.b]
    values = numbers(x, format_, name).to(torch.float64)
    powers = exponents(values, format_.least)
    if scales is None or instruction.scales is None:
        return Operand(values, powers)
    sizes = _scale_values(scales, instruction.scales)
    size_powers = exponents(sizes, _SCALE_LEAST[instruction.scales.format]).masked_fill(sizes == 0, _NO_SCALE)
    if instruction.form == "group scales":
        times = instruction.scales.block // 16
        return Operand(values, powers, Operand(_spread(sizes, times), _spread(size_powers, times)))
    block = instruction.scales.block
    return Operand(values * _spread(sizes, block), powers + _spread(size_powers, block))


def _spread(scales: torch.Tensor, times: int) -> torch.Tensor:
    return scales.repeat_interleave(times, dim=0)


def numbers(x: torch.Tensor, format_: InputFormat, name: str) -> torch.Tensor:
    """What an instruction reads of a matrix called `name`, as bf16 or fp32; of tf32 fp32 without their low 13 bits.

    Raises ValueError if x holds numbers that the format lacks.
    """
    if format_.container != str(x.dtype).removeprefix("torch."):
        _check_values(x.to(torch.float64), format_, name)
    x = x if x.dtype == torch.bfloat16 else x.to(torch.float32)
    if format_.name != "tf32" or x.dtype != torch.float32:
        return x
    # A NaN whose payload lies in the low bits stays one.
    return torch.where(x.isnan(), x, (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32))


def _check_values(values: torch.Tensor, format_: InputFormat, name: str) -> None:
    unit = power_of_two(exponents(values, format_.least).clamp(min=format_.least) - (format_.precision - 1))
    largest = torch.finfo(torch.float32).max if format_.largest is None else format_.largest
    scaled = values / unit
    valid = (values == 0) | ~values.isfinite() | ((scaled == scaled.trunc()) & (values.abs() <= largest))
    if not bool(valid.all()):
        wrong = values[~valid]
        raise ValueError(
            f"{name} holds {len(wrong):,} numbers that are no {format_.name}, the first {float(wrong[0])!r}. "
            f"Round it to {format_.name} first."
        )


def _scale_values(scales: torch.Tensor, kind: Scales) -> torch.Tensor:
    """fp64 values of scales; ue4m3 is e4m3 without its sign."""
    values = scales.to(torch.float64)
    return values.abs() if kind.format == "ue4m3" else values
