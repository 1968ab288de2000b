"""Products of matrices drawn for an instruction, and what Python's fractions give for them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch

from moeparity.numerics.tensor_core.formats import FORMATS
from moeparity.numerics.tensor_core.instructions import Instruction
from moeparity.numerics.tensor_core.product import multiply_add
from tests.numerics.tensor_core import scalar

Kind = Literal["plain", "wide", "tiny", "cancelling", "special"]
KINDS: tuple[Kind, ...] = ("plain", "wide", "tiny", "cancelling", "special")

TINY = {"bf16": (2.0**-80, 2.0**-68), "tf32": (2.0**-80, 2.0**-68), "fp16": (2.0**-24, 2.0**-11)}
"""Sizes of factors whose products lie about the least exponent of a sum."""


def every_number(format_: str) -> torch.Tensor:
    """All finite numbers of a format, as fp64."""
    layout = FORMATS[format_]
    places = layout.precision - 1
    top = 127 if layout.largest is None else math.frexp(layout.largest)[1] - 1
    fractions = torch.arange(1 << places, dtype=torch.float64) / (1 << places)
    powers = torch.arange(layout.least, top + 1, dtype=torch.float64)
    values = torch.cat([fractions * 2.0**layout.least, ((1 + fractions) * 2.0 ** powers[:, None]).flatten()])
    values = values if layout.largest is None else values[values <= layout.largest]
    return torch.cat([values, -values])


def factor(format_: str, shape: tuple[int, ...], kind: Kind, generator: torch.Generator) -> torch.Tensor:
    """fp64 numbers of a format, a tenth of them zero; `cancelling`: mostly a number and then its negative."""
    values = every_number(format_)
    least, most = {"wide": (0.0, math.inf), "tiny": TINY.get(format_, (0.0, 0.5))}.get(kind, (0.25, 4.0))
    values = values[(values.abs() >= least) & (values.abs() <= most)]
    x = values[torch.randint(len(values), shape, generator=generator)]
    if kind == "cancelling":
        x[..., 1::2] = torch.where(torch.rand(x[..., ::2].shape, generator=generator) < 0.9, -x[..., ::2], x[..., 1::2])
    x = x.masked_fill(torch.rand(shape, generator=generator) < 0.1, 0.0)
    # Formats without infinity have NaN at most; fp6 and fp4 have neither.
    if kind == "special" and not format_.startswith(("fp6", "fp4")):
        which = torch.rand(shape, generator=generator)
        x = x.masked_fill(which < 0.01, math.nan)
        if format_ != "fp8_e4m3":
            x = x.masked_fill(which > 0.98, math.inf).masked_fill(which > 0.99, -math.inf)
    return x


@dataclass(frozen=True, slots=True)
class Drawn:
    """a [M, K], b [N, K] and scales as fp64, c [M, N] in the result's dtype."""

    instruction: Instruction
    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    a_scales: torch.Tensor | None = None
    b_scales: torch.Tensor | None = field(default=None)

    def result(self, instruction: Instruction | None = None) -> torch.Tensor:
        """moeparity's result; `instruction`: another arithmetic on the same data."""
        # fp32 holds the numbers of every format.
        a, b = self.a.float(), self.b.float().mT
        columns = None if self.b_scales is None else self.b_scales.mT
        row = instruction or self.instruction
        return multiply_add(row, a, b, self.c, a_scales=self.a_scales, b_scales=columns)

    def expected(self) -> torch.Tensor:
        """Integers [M, N]: bits of what fractions give."""
        rows, columns = self.c.shape
        values = [self._element(i, j) for i in range(rows) for j in range(columns)]
        return scalar.patterns(values, self.c.dtype).reshape(rows, columns)

    def _element(self, i: int, j: int) -> float:
        c = float(self.c[i, j])
        for k in range(0, self.a.shape[1], self.instruction.span):
            c = self._step(i, j, k, c)
        return c

    def _step(self, i: int, j: int, k: int, c: float) -> float:
        instruction = self.instruction
        arithmetic, formats = instruction.dot_add, (instruction.a, instruction.b)
        a, b = (x[at, k : k + instruction.span].tolist() for x, at in ((self.a, i), (self.b, j)))
        if instruction.form == "late addend":
            return scalar.late_addend(a, b, c, formats, arithmetic.result, arithmetic.floor)
        if instruction.scales is None or self.a_scales is None or self.b_scales is None:
            return scalar.dot_add(a, b, c, formats, arithmetic.fraction, arithmetic.result, arithmetic.floor)
        at = slice(k // instruction.scales.block, (k + instruction.span) // instruction.scales.block)
        left, right = self.a_scales[i, at].tolist(), self.b_scales[j, at].tolist()
        if instruction.form == "group scales":
            return scalar.grouped(a, b, c, left, right, -6 if instruction.scales.format == "ue4m3" else -127)
        return scalar.scaled(a, b, c, (left[0], right[0]), formats)


def drawn(instruction: Instruction, kind: Kind, seed: int, *, m: int = 3, n: int = 4) -> Drawn:
    """Some matrices of one kind, K two spans long."""
    generator = torch.Generator().manual_seed(seed)
    k = 2 * instruction.span
    a, b = (
        factor(format_, (rows, k), kind, generator)
        for format_, rows in ((instruction.a, m), (instruction.b, n))
    )  # fmt: skip
    half = instruction.dot_add.result == "fp16"
    size = {"tiny": -22.0 if half else -136.0, "wide": 6.0, "cancelling": -8.0}.get(kind, 2.0)
    c = torch.randn(m, n, generator=generator) * 2.0**size
    c = c.masked_fill(torch.rand(m, n, generator=generator) < 0.5, 0).to(torch.float16 if half else torch.float32)
    if instruction.scales is None:
        return Drawn(instruction, a, b, c)
    blocks = k // instruction.scales.block
    scales = (_scales(instruction.scales.format, (rows, blocks), kind, generator) for rows in (m, n))
    return Drawn(instruction, a, b, c, *scales)


def _scales(format_: str, shape: tuple[int, int], kind: Kind, generator: torch.Generator) -> torch.Tensor:
    if format_ == "ue4m3":
        scales = factor("fp8_e4m3", shape, "wide" if kind == "plain" else kind, generator).abs()
    else:
        most = {"tiny": -60, "wide": 60}.get(kind, 4)
        scales = 2.0 ** torch.randint(most - 8, most, shape, generator=generator).double()
    return scales.masked_fill(torch.rand(shape, generator=generator) < 0.03, math.nan) if kind == "special" else scales
