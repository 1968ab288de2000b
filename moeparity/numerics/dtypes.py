"""Dtype names as the YAML files spell them, and the one way to round a tensor to one of them.

Names are torch-free so that plans can be made and printed without importing torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

CHECKPOINT_NAMES = ("bf16", "fp16", "fp32")
"""Dtypes a checkpoint can be stored in."""

FLOAT_NAMES = (*CHECKPOINT_NAMES, "fp64")
"""Dtypes a model can run in and a rounding site can round to."""

FP8_NAMES = ("fp8_e4m3", "fp8_e5m2")
"""8-bit dtypes, which a site names that stores with a scale. e4m3 is torch's float8_e4m3fn: no infinities, at most
448."""

MODEL = "model"
"""Site value that stands for the dtype the variant runs in."""

UNROUNDED = "unrounded"
"""Site value that leaves values in the dtype they come in."""

_TORCH_NAMES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}
_NAMES = {torch_name: name for name, torch_name in _TORCH_NAMES.items()}


def torch_dtype(name: str) -> torch.dtype:
    """`bf16` -> `torch.bfloat16`, and so on."""
    import torch

    dtype: torch.dtype = getattr(torch, _TORCH_NAMES[name])
    return dtype


def name_of(dtype: torch.dtype | str) -> str | None:
    """`torch.bfloat16`, `torch.bfloat16` as text, or `bfloat16` -> `bf16`; None for anything that is no float here."""
    return _NAMES.get(str(dtype).removeprefix("torch."))
