"""What each known kind of kernel takes and gives: tensors by name, with their extents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Shape = tuple[str, ...]
"""Extents, each an expression of sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Input and output tensors, row-major, by name; each in the file's dtype, or in that of `dtypes`.

    optional: inputs that a kernel need not take. scalars: numbers that are not sizes.
    """

    inputs: Mapping[str, Shape]
    outputs: Mapping[str, Shape]
    optional: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()
    dtypes: Mapping[str, str] = field(default_factory=dict)


LAYOUTS = {
    "sum": Layout(inputs={"x": ("rows", "n")}, outputs={"out": ("rows",)}),
    "linear": Layout(
        inputs={"x": ("rows", "n"), "weight": ("columns", "n")},
        outputs={"out": ("rows", "columns")},
    ),
    "softmax": Layout(inputs={"x": ("rows", "n")}, outputs={"out": ("rows", "n")}),
    "rms_norm": Layout(
        inputs={"x": ("tokens", "hidden"), "weight": ("hidden",)},
        outputs={"out": ("tokens", "hidden")},
        scalars=("eps",),
    ),
    "combine": Layout(
        inputs={"rows": ("tokens", "slots", "hidden"), "weights": ("tokens", "slots")},
        outputs={"out": ("tokens", "hidden")},
        optional=("weights",),
        dtypes={"weights": "fp32"},
    ),
    "router": Layout(
        inputs={"logits": ("tokens", "experts"), "bias": ("experts",)},
        outputs={"ids": ("tokens", "top_k"), "weights": ("tokens", "top_k")},
        optional=("bias",),
        scalars=("scale",),
        dtypes={"ids": "int32", "weights": "fp32", "bias": "fp32"},
    ),
    "swiglu": Layout(
        inputs={"gate": ("tokens", "width"), "up": ("tokens", "width"), "gate_up": ("tokens", "2 * width")},
        outputs={"out": ("tokens", "width")},
        optional=("gate", "up", "gate_up"),
    ),
}
"""By what a kernel file says under `computes`."""
