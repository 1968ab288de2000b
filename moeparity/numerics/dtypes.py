"""Names of dtypes in the YAML files, and the conversion to torch's.

Importing this needs no torch, so that plans can be made and printed without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

CHECKPOINT_NAMES = ("bf16", "fp16", "fp32")
"""Dtypes in which a checkpoint can be stored."""

FLOAT_NAMES = (*CHECKPOINT_NAMES, "fp64")
"""Dtypes in which a model can run and to which a rounding site can round."""

FP8_NAMES = ("fp8_e4m3", "fp8_e5m2")
"""8-bit dtypes, for sites that store with a scale. e4m3 is torch's float8_e4m3fn: no infinities, largest number 448."""

EIGHT_BITS = ("fp8_e4m3", "int8")
"""Grids of 8 bits that a GEMM multiplies codes of."""

FOUR_BITS = ("int4", "fp4_e2m1")
"""Grids of 4 bits of weights that are multiplied out for a GEMM in 16 bits."""

CUT_NAMES = ("bf16_rz",)
"""Values of a site that rounds toward zero: the leading bits are kept, the others cut off."""

MODEL = "model"
"""The value of a site that stands for the dtype in which the variant runs."""

UNROUNDED = "unrounded"
"""The value of a site that leaves values in the dtype in which they come."""

OF_INPUT = "input"
"""The value of a site that rounds to the dtype in which the op's first input comes."""

_TORCH_NAMES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "int8": "int8",
    "int4": "int4",
    "fp4_e2m1": "float4_e2m1fn_x2",
}
_CODES = ("int8", *FOUR_BITS)
_NAMES = {torch_name: name for name, torch_name in _TORCH_NAMES.items() if name not in _CODES}


def torch_dtype(name: str) -> torch.dtype:
    """`bf16` -> `torch.bfloat16`, and so on."""
    import torch

    dtype: torch.dtype = getattr(torch, _TORCH_NAMES[name])
    return dtype


@dataclass(frozen=True, slots=True)
class TowardZero:
    """What a site holds in place of a dtype if it rounds toward zero to `dtype`."""

    dtype: torch.dtype


def stored_name(name: str) -> str:
    """The dtype of what a rounding site leaves, by name: `bf16_rz` -> `bf16`."""
    return name.removesuffix("_rz")


def site_dtype(name: str) -> torch.dtype | TowardZero:
    """The value of a rounding site as kernels take it: `bf16` -> `torch.bfloat16`, `bf16_rz` -> `TowardZero` of it."""
    return TowardZero(torch_dtype(stored_name(name))) if name in CUT_NAMES else torch_dtype(name)


def name_of(dtype: torch.dtype | str) -> str | None:
    """`torch.bfloat16`, or its name `torch.bfloat16` or `bfloat16` -> `bf16`; None for anything that is no float
    here.
    """
    return _NAMES.get(str(dtype).removeprefix("torch."))
