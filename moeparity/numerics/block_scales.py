"""Scales of blocks of numbers on a grid of 8 or 4 bits, made from a magnitude of each block."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import torch

from moeparity.numerics.dtypes import torch_dtype

Tensor = torch.Tensor
Block = tuple[int, int]
"""Rows and columns that share a scale; 0: all there are."""

INT4, FP4 = torch_dtype("int4"), torch_dtype("fp4_e2m1")
"""What grids of 4 bits are called: their codes lie in int8, and in fp32."""
LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0, INT4: 7.0, FP4: 6.0}
"""The magnitude that the largest number of a block is given."""
_HALF = 0.5
_EXPONENTS = {torch.float8_e4m3fn: 8, torch.int8: 6, INT4: 2, FP4: 2}
"""The exponent of 2 in the largest code."""
_FRACTIONS = {torch.float8_e4m3fn: 3, torch.int8: 6, INT4: 2, FP4: 1}
"""The fraction bits of the largest code."""
_FRACTION_OF_FP32 = 23
_LEAST_POWER: Final = 2.0**-126
TWO_LEVELS, TWO_LEVELS_DIVIDED = "two_levels", "two_levels_divided"
"""Scales of NVFP4: a number of fp8_e4m3 for each block times one of fp32 for the tensor, or divided by one."""
_OF_SCALES, _LEAST_SCALE, _FOR_ZERO = 448.0, 2.0**-9, 0.125
"""The largest and the least number of fp8_e4m3; what compressed-tensors takes for a scale that is 0 there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Magnitude:
    """Which number stands for the largest of a block. way: `largest`, times `number`; `shrunk`, `expanded`,
    `multiplied` or `swept`, which search (`moeparity.numerics.scale_search`); `percentile`, which `number` is; or
    `given`, `number` itself.
    """

    way: str = "largest"
    number: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """How numbers are rounded to codes.

    dtype: of a code, one of `LARGEST`. block: what shares a scale. scale: `fp32`; a way to a power of two, `ue8m0`,
    `ue8m0_floor`, `ue8m0_ceil`, `ue8m0_even` or `ue8m0_even_fp4`; `two_levels` or `two_levels_divided`. scale_by:
    `divided`, `reciprocal`, of the largest code, or `inverted`, 1 / (largest code / magnitude). quotient: `divided`,
    `reciprocal` or `from_largest`. floor: a magnitude below it counts as this. full: whole numbers have half their
    range, 127.5 or 7.5, for largest code. arithmetic: in which dtype scales and quotients are computed.
    """

    dtype: torch.dtype
    block: Block
    scale: str
    scale_by: str
    quotient: str
    floor: float
    magnitude: Magnitude = field(default_factory=Magnitude)
    full: bool = False
    arithmetic: torch.dtype = torch.float32

    @property
    def top(self) -> float:
        """The code that the magnitude of a block is given."""
        whole = self.dtype in (torch.int8, INT4)
        return LARGEST[self.dtype] + (_HALF if whole and self.full else 0)


def scales_of(magnitudes: Tensor, grid: Grid, whole: Tensor) -> Tensor:
    """The scales of blocks with these magnitudes, none below the floor, in their dtype, of two levels in fp32; 1 where
    a magnitude is 0. whole: the largest magnitude of the tensor, [].
    """
    if grid.scale in (TWO_LEVELS, TWO_LEVELS_DIVIDED):
        return _of_two_levels(magnitudes, grid, whole)
    top = torch.full_like(magnitudes, grid.top)
    if grid.scale not in ("fp32", "ue8m0"):
        scales = _power_of_magnitude(magnitudes.float(), grid).to(magnitudes.dtype)
    elif grid.scale_by == "inverted":
        scales = 1 / factors_of(magnitudes, grid)
    else:
        scales = magnitudes / top if grid.scale_by == "divided" else magnitudes * (1 / top)
    if grid.scale == "ue8m0":
        scales = raised_to_power(scales.float()).to(magnitudes.dtype)
    return torch.where(magnitudes == 0, 1.0, scales)


def _of_two_levels(magnitudes: Tensor, grid: Grid, whole: Tensor) -> Tensor:
    """Scales that are numbers of fp8_e4m3 on a scale of the tensor, fp32.

    `two_levels`: times the tensor's magnitude / (largest code * 448); a block's is at least 2^-9, and of zeros 1 before
    it is put on that scale (ModelOpt 0.47.0, quantization/qtensor/nvfp4_tensor.py
    get_weights_scaling_factor_from_quantizer). `two_levels_divided`: over 448 * largest code / the largest of the
    magnitudes that were chosen, with 1/8 for a block's that is 0 (compressed-tensors 0.20.1,
    quantization/utils/helpers.py generate_gparam, calculate_qparams).
    """
    by_code = magnitudes / grid.top
    if grid.scale == TWO_LEVELS:
        by_code = torch.where(by_code == 0, 1.0, by_code.float())
        stored = (by_code * _OF_SCALES / (whole.float() / grid.top)).clamp(_LEAST_SCALE, _OF_SCALES)
        return stored.to(torch.float8_e4m3fn).float() * (whole.float() / (grid.top * _OF_SCALES))
    largest = magnitudes.max().clamp(min=torch.finfo(magnitudes.dtype).tiny)
    factor = (_OF_SCALES * grid.top / largest).nan_to_num(nan=1.0, posinf=1.0).float()
    stored = (factor * by_code.float()).clamp(max=_OF_SCALES).to(torch.float8_e4m3fn).float()
    return torch.where(stored == 0, _FOR_ZERO, stored) / factor


def factors_of(magnitudes: Tensor, grid: Grid) -> Tensor:
    """The largest code over each magnitude, 1 where that is 0.

    `inverted` has it as TransformerEngine d0067d0 does (common/recipe/recipe_common.cuh compute_scale_from_amax): 1 of
    an infinity too, and the largest number where it would be infinite.
    """
    factors = torch.full_like(magnitudes, grid.top) / magnitudes
    if grid.scale_by == "inverted":
        factors = torch.where(magnitudes.isinf(), 1.0, factors.clamp(max=torch.finfo(factors.dtype).max))
    return torch.where(magnitudes == 0, 1.0, factors)


def raised_to_power(scales: Tensor) -> Tensor:
    """The least power of two that is not below a positive fp32 number, by its bits; at least 2^-126."""
    bits = scales.view(torch.int32)
    above = (bits & 0x7FFFFF) != 0
    raised = ((bits >> 23) + above.int()).clamp(min=1) << 23
    return torch.where(scales.isfinite(), raised.view(torch.float32), scales)


def _power_of_magnitude(magnitudes: Tensor, grid: Grid) -> Tensor:
    """Powers of two from the exponents of fp32 magnitudes, less that of the largest code; at least 2^-126.

    `ue8m0_floor`: of the power below (OCP Microscaling Formats 1.0, 6.3); `ue8m0_ceil`: above; `ue8m0_even`: of the
    nearest number with as many fraction bits as a code has, halves up, then the power below; all three: torchao 0.18.0,
    prototype/mx_formats/mx_tensor.py to_mx. `ue8m0_even_fp4`: with the one fraction bit of fp4_e2m1 for any code
    (compressed-tensors 0.20.1, quantization/utils/mxfp_utils.py round_to_power_2).
    """
    bits = magnitudes.view(torch.int32)
    if grid.scale.startswith("ue8m0_even"):
        fraction = _FRACTIONS[FP4 if grid.scale == "ue8m0_even_fp4" else grid.dtype]
        bits = bits + (1 << (_FRACTION_OF_FP32 - fraction - 1))
    exponents = (bits >> _FRACTION_OF_FP32) & 0xFF
    if grid.scale == "ue8m0_ceil":
        exponents = exponents + ((bits & 0x7FFFFF) != 0).int()
    biased = (exponents - _EXPONENTS[grid.dtype]).clamp(min=0)
    powers = (biased << _FRACTION_OF_FP32).view(torch.float32).clamp(min=_LEAST_POWER)
    return torch.where(magnitudes.isnan(), magnitudes, powers)
