"""The truncated fused dot-add, on tensors of any device.

All steps are exact in fp64, which is used as an integer of 53 bits with an exponent: a product of two factors has at
most 22 bits, a term cut to its unit is an integer below 2^48, and so is the sum. Infinity and NaN go through as fp64
has them.
"""

from __future__ import annotations

import torch

from moeparity.numerics.tensor_core.instructions import DotAdd, Result
from moeparity.numerics.tensor_core.operands import exponents, power_of_two

_FRACTION = {"fp32": 23, "fp32_e8m13": 13, "fp16": 10}
_LEAST = {"fp32": -126, "fp32_e8m13": -126, "fp16": -14}
_OVERFLOW = {"fp32": 2.0**128, "fp32_e8m13": 2.0**128, "fp16": 2.0**16}


def dot_add(arithmetic: DotAdd, terms: torch.Tensor, powers: torch.Tensor, addend: torch.Tensor) -> torch.Tensor:
    """terms [L, ..] plus addend [..], all fp64 -> fp64 values of the arithmetic's result format.

    powers [L, ..]: exponents of the terms, int16; a term is below 2^11 times 2 to its exponent. A sum of zero is +0; a
    sum whose result is cut to zero keeps its sign.
    """
    addend_powers = exponents(addend, _LEAST[arithmetic.result])
    largest = torch.maximum(powers.amax(0), addend_powers).clamp_(min=arithmetic.floor)
    unit = largest - arithmetic.fraction
    per_unit = power_of_two(-unit)
    total = terms.mul(per_unit).trunc_().sum(0).add_(addend.mul(per_unit).trunc_())
    return rounded(total.add_(0.0).mul_(power_of_two(unit)), arithmetic.result)


def rounded(x: torch.Tensor, result: Result) -> torch.Tensor:
    """fp64 numbers rounded to a result format, as fp64; fp16 to nearest, ties to even, others toward zero."""
    unit = exponents(x, _LEAST[result]).clamp_(min=_LEAST[result]) - _FRACTION[result]
    scaled = x * power_of_two(-unit)
    value = (scaled.round_() if result == "fp16" else scaled.trunc_()).mul_(power_of_two(unit))
    return torch.where(
        value.abs() >= _OVERFLOW[result], torch.copysign(torch.full_like(value, torch.inf), value), value
    )
