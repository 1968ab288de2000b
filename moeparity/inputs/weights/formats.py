"""The formats of quantised weights that are read: which tensors a weight lies in, what their codes stand for, and how
codes and scales make numbers. A format is a row of this table; `moeparity show formats` prints it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from moeparity.errors import CheckpointError, did_you_mean, listed

Code = Literal["e4m3", "e2m1", "int4", "int8", "uint4", "uint8"]
"""What one number is stored as. `int4`, `int8` in packed words are stored above 0: plus 8, plus 128."""
Packing = Literal["one by one", "pairs", "words", "AWQ words", "words down"]
"""How codes lie in the stored numbers. `pairs`: two of a row in a byte, the low half first. `words`: as many of a row
as 32 bits hold, the lowest first, in AWQ's in the order 0, 2, 4, 6, 1, 3, 5, 7; `words down`: of a column.
"""
Product = Literal["fp32", "scales", "bf16"]
"""In which dtype a code is multiplied by its scale and the product rounded, before it is cast to the model's dtype.
`scales`: in the scales' own dtype. `bf16`: in fp32, and rounded to bf16 whatever the model's dtype.
"""
Block = tuple[int, int]
"""Rows and columns, as they are stored, that share a scale; 0: all there are."""

BITS: Mapping[str, int] = {"e4m3": 8, "e2m1": 4, "int4": 4, "int8": 8, "uint4": 4, "uint8": 8}
RANGES: Mapping[str, str] = {
    "e4m3": "-448..448, 2 NaN",
    "e2m1": "0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives",
    "int4": "-8..7",
    "int8": "-128..127",
    "uint4": "0..15",
    "uint8": "0..255",
}
_FLOATS = ("F32", "BF16", "F16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One way in which a weight lies in a checkpoint.

    methods: the values of `quant_method` in config.json under which it occurs. values, scales, second, zeros, index,
    shape: the endings of its tensors' names, after a name that they share; empty if there is no such tensor. weight:
    the ending of the weight's name in a graph. stored, scale_dtypes: safetensors dtypes. group: inputs that share a
    scale, where the format fixes them. second: a scale of the whole tensor, by which the scales are multiplied or
    `second_divides`. zero_offset: what is added to a stored zero point. transposed: the weight is [experts, inputs,
    outputs], and stored the other way round. evidence: `verified` if tests compare every code and each layout with
    `held_to`; `read` if the rule was only read there.
    """

    name: str
    methods: tuple[str, ...]
    values: str
    stored: str
    code: Code
    scales: str
    scale_dtypes: tuple[str, ...]
    product: Product
    held_to: str
    evidence: Literal["verified", "read"]
    packing: Packing = "one by one"
    weight: str = ".weight"
    group: int = 0
    second: str = ""
    second_divides: bool = False
    zeros: str = ""
    zero_packing: Packing = "one by one"
    zero_offset: int = 0
    index: str = ""
    shape: str = ""
    transposed: bool = False
    names: Mapping[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Endings of names by role, of those that the format has."""
        roles = ("values", "scales", "second", "zeros", "index", "shape")
        object.__setattr__(self, "names", {role: getattr(self, role) for role in roles if getattr(self, role)})

    @property
    def input_major(self) -> bool:
        """Whether codes, scales and zero points are stored as [inputs, outputs]."""
        return self.packing in ("AWQ words", "words down")

    @property
    def needed(self) -> tuple[str, ...]:
        """Roles without which a weight can't be read."""
        optional = () if self.input_major else ("zeros",)
        return tuple(role for role in self.names if role not in (*optional, "index", "shape"))

    @property
    def rule(self) -> str:
        """What a code stands for, as a formula."""
        zero = f" - zero{f' - {self.zero_offset}' if self.zero_offset else ''}" if self.zeros else ""
        second = f" {'/' if self.second_divides else '*'} {self.second.lstrip('.')}" if self.second else ""
        code = f"(code{zero})" if zero else "code"
        power = "2^(scale - 127)" if self.scale_dtypes == ("U8",) else "scale"
        rounded = {"fp32": "in fp32", "scales": "in the scales' dtype", "bf16": "rounded to bf16"}[self.product]
        return f"{code} * {f'({power}{second})' if second else power}, {rounded}"


_TRANSFORMERS = "transformers 5.23.0"
_COMPRESSED = "compressed-tensors 0.20.1"
_OPEN_COMPUTE = "modelopt 0.47.0"

FORMATS: Mapping[str, Format] = {
    each.name: each
    for each in (
        Format(
            name="fp8-blocks", methods=("fp8", ""), values=".weight", stored="F8_E4M3", code="e4m3",
            scales=".weight_scale_inv", scale_dtypes=("F32", "BF16", "F8_E8M0", "U8"), product="fp32",
            held_to=f"{_TRANSFORMERS} Fp8Dequantize", evidence="verified",
        ),
        Format(
            name="fp8", methods=("fp8", "compressed-tensors", "modelopt", ""), values=".weight", stored="F8_E4M3",
            code="e4m3", scales=".weight_scale", scale_dtypes=_FLOATS, product="scales",
            held_to=f"{_COMPRESSED} float-quantized, naive-quantized", evidence="verified",
        ),
        Format(
            name="mxfp8", methods=("compressed-tensors", "modelopt"), values=".weight", stored="F8_E4M3", code="e4m3",
            scales=".weight_scale", scale_dtypes=("U8",), product="bf16", group=32,
            held_to=f"{_COMPRESSED} mxfp8-quantized", evidence="verified",
        ),
        Format(
            name="mxfp4", methods=("mxfp4",), values="_blocks", stored="U8", code="e2m1", packing="pairs",
            scales="_scales", scale_dtypes=("U8",), product="bf16", group=32, weight="", transposed=True,
            held_to=f"{_TRANSFORMERS} convert_moe_packed_tensors", evidence="verified",
        ),
        Format(
            name="mxfp4-packed", methods=("compressed-tensors",), values=".weight_packed", stored="U8", code="e2m1",
            packing="pairs", scales=".weight_scale", scale_dtypes=("U8",), product="bf16", group=32,
            held_to=f"{_COMPRESSED} mxfp4-pack-quantized", evidence="verified",
        ),
        Format(
            name="nvfp4-packed", methods=("compressed-tensors",), values=".weight_packed", stored="U8", code="e2m1",
            packing="pairs", scales=".weight_scale", scale_dtypes=("F8_E4M3",), product="bf16", group=16,
            second=".weight_global_scale", second_divides=True,
            held_to=f"{_COMPRESSED} nvfp4-pack-quantized", evidence="verified",
        ),
        Format(
            name="nvfp4", methods=("modelopt",), values=".weight", stored="U8", code="e2m1", packing="pairs",
            scales=".weight_scale", scale_dtypes=("F8_E4M3",), product="fp32", group=16, second=".weight_scale_2",
            held_to=f"{_OPEN_COMPUTE} NVFP4QTensor.dequantize", evidence="read",
        ),
        Format(
            name="int4-packed", methods=("compressed-tensors",), values=".weight_packed", stored="I32", code="int4",
            packing="words", scales=".weight_scale", scale_dtypes=_FLOATS, product="scales",
            zeros=".weight_zero_point", zero_packing="words down", shape=".weight_shape",
            held_to=f"{_COMPRESSED} pack-quantized", evidence="verified",
        ),
        Format(
            name="int8-packed", methods=("compressed-tensors",), values=".weight_packed", stored="I32", code="int8",
            packing="words", scales=".weight_scale", scale_dtypes=_FLOATS, product="scales",
            zeros=".weight_zero_point", zero_packing="words down", shape=".weight_shape",
            held_to=f"{_COMPRESSED} pack-quantized", evidence="verified",
        ),
        Format(
            name="int8", methods=("compressed-tensors",), values=".weight", stored="I8", code="int8",
            scales=".weight_scale", scale_dtypes=_FLOATS, product="scales", zeros=".weight_zero_point",
            held_to=f"{_COMPRESSED} int-quantized", evidence="verified",
        ),
        Format(
            name="awq", methods=("awq",), values=".qweight", stored="I32", code="uint4",
            packing="AWQ words", scales=".scales", scale_dtypes=_FLOATS, product="scales", zeros=".qzeros",
            zero_packing="AWQ words", held_to="autoawq 0.2.9 dequantize_gemm", evidence="verified",
        ),
        Format(
            name="gptq-int4", methods=("gptq",), values=".qweight", stored="I32", code="uint4",
            packing="words down", scales=".scales", scale_dtypes=_FLOATS, product="scales", zeros=".qzeros",
            zero_packing="words", zero_offset=1, index=".g_idx",
            held_to="gptqmodel 7.7.0 dequantize_weight", evidence="verified",
        ),
        Format(
            name="gptq-int8", methods=("gptq",), values=".qweight", stored="I32", code="uint8",
            packing="words down", scales=".scales", scale_dtypes=_FLOATS, product="scales", zeros=".qzeros",
            zero_packing="words", zero_offset=1, index=".g_idx",
            held_to="gptqmodel 7.7.0 dequantize_weight", evidence="verified",
        ),
    )
}  # fmt: skip
"""By name."""


def format_of(name: str) -> Format:
    """The format of that name. Raises CheckpointError for an unknown name."""
    if name not in FORMATS:
        raise CheckpointError(
            f"{name!r} is no format of quantised weights.{did_you_mean(name, FORMATS)} There are {listed(FORMATS)}."
        )
    return FORMATS[name]
