"""Which arithmetic a GPU's matrix instructions have, as a table. Importing this needs no torch.

Every NVIDIA tensor core from V100 to B200 computes one operation, a truncated fused dot-add (`DotAdd`); what differs is
its parameters, and how an instruction chains it. Sources: the models of north-numerical-computing/MATLAB-tensor-core
b12b5a7 (BSD-2) with recorded outputs of eight GPUs; microsoft/MMA-Sim c785138 (MIT); badasherez/gpu-simulator 30703fc.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Literal

from moeparity.numerics.tensor_core.formats import FORMATS, NARROW

Result = Literal["fp32", "fp32_e8m13", "fp16"]
"""fp32: cut to 24 significant bits. fp32_e8m13: an fp32 cut to 14. fp16: rounded once to nearest, ties to even."""

Form = Literal["chain", "late addend", "block scales", "group scales"]

Evidence = Literal["vectors", "read", "inferred"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DotAdd:
    """d = a . b + c for `products` factors, all terms cut to one unit and then added without error.

    The unit is 2^(E - fraction). E is the largest exponent among products and c, and at least `floor`; the exponent of
    a product is the sum of its factors' exponents, not that of its value. Terms are cut toward zero. The sum is rounded
    as `result` says.
    """

    products: int
    fraction: int
    result: Result
    floor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """Scales of an instruction's factors: one of `format` for every `block` elements along K."""

    format: Literal["ue8m0", "ue4m3"]
    block: int

    def __str__(self) -> str:
        return f"{self.format} per {self.block}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """How one instruction of one GPU multiplies and adds.

    a, b: formats of the factors. span: elements of K that one pass takes; K is a multiple of it.
    form: `chain`, one dot-add after the other, each with the last one's result as its c. `late addend`: fp8 converted
    to fp16, two dot-adds of alternate pairs from zero, and c added to their result. `block scales`: a chain of products
    with scales. `group scales`: fp4 products added exactly in groups of 16, and groups as the terms of the dot-add.
    evidence: `vectors`, recorded outputs of the GPU are all equal; `read` in a published model; `inferred`.
    """

    gpu: str
    unit: str
    a: str
    b: str
    dot_add: DotAdd
    span: int
    form: Form = "chain"
    scales: Scales | None = None
    evidence: Evidence = "vectors"

    def __str__(self) -> str:
        factors = self.a if self.a == self.b else f"{self.a} x {self.b}"
        scaled = "" if self.scales is None else f", {self.form}: {self.scales}"
        return f"{self.gpu} {self.unit} {factors}{scaled} -> {self.dot_add.result}"


ARCHITECTURES = {
    "v100": "sm_70", "t4": "sm_75", "a100": "sm_80", "a2": "sm_86", "l40s": "sm_89", "h100": "sm_90", "h200": "sm_90",
    "b200": "sm_100", "gb300": "sm_103", "rtx_pro_6000": "sm_120",
}  # fmt: skip
"""GPU -> its architecture."""

_FRACTIONS = {
    "sm_70": 23, "sm_75": 24, "sm_80": 24, "sm_86": 24, "sm_89": 24,
    "sm_90": 25, "sm_100": 25, "sm_103": 25, "sm_120": 25,
}  # fmt: skip
_UNITS = {"sm_90": ("mma", "wgmma"), "sm_100": ("mma", "tcgen05"), "sm_103": ("mma", "tcgen05")}
_UNRECORDED = ("sm_75", "sm_103", "sm_120")


def _floor(fraction: int, result: Result) -> int:
    """The least E: of fp16 results -21 at 25 bits, -20 at 24, -19 at 23, else -133, -132 (MATLAB-tensor-core); -139 at
    13 bits (gpu-simulator), which no sum of fp8 products reaches.
    """
    if fraction == 13:
        return -139
    return (4 if result == "fp16" else -108) - fraction


def _dot_add(products: int, fraction: int, result: Result) -> DotAdd:
    return DotAdd(products=products, fraction=fraction, result=result, floor=_floor(fraction, result))


def _wide(architecture: str, unit: str) -> Iterator[Instruction]:
    """fp16, bf16 and tf32."""
    fraction = _FRACTIONS[architecture]
    products = {23: 4, 24: 8, 25: 16}[fraction]
    evidence: Evidence = "vectors"
    if unit == "tcgen05" or architecture in _UNRECORDED:
        evidence = "read"
    fp16 = Instruction(
        gpu=architecture, unit=unit, a="fp16", b="fp16", dot_add=_dot_add(products, fraction, "fp32"), span=products,
        evidence=evidence,
    )  # fmt: skip
    yield fp16
    yield replace(fp16, dot_add=_dot_add(products, fraction, "fp16"))
    if fraction >= 24 and architecture != "sm_75":
        yield replace(fp16, a="bf16", b="bf16")
        # No recorded row of Hopper's and later GPUs has more than 4 products.
        yield replace(
            fp16, a="tf32", b="tf32", dot_add=_dot_add(products // 2, fraction, "fp32"), span=products // 2,
            evidence="read" if products == 16 else evidence,
        )  # fmt: skip


def _pairs(formats: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    return ((a, b) for a in formats for b in formats)


_FP8 = ("fp8_e4m3", "fp8_e5m2")


def _fp8_native(architecture: str, unit: str, products: int, fraction: int) -> Iterator[Instruction]:
    """fp8 multiplied as it is; on Blackwell fp6 and fp4 too."""
    blackwell = fraction == 25
    for a, b in _pairs(NARROW if blackwell else _FP8):
        for result in ("fp32", "fp16") if blackwell else ("fp32_e8m13", "fp16"):
            recorded = not blackwell and a == b and (architecture, result) != ("sm_90", "fp16")
            yield Instruction(
                gpu=architecture, unit=unit, a=a, b=b, dot_add=_dot_add(products, fraction, result), span=products,
                evidence="vectors" if recorded else "read" if "fp6" not in a + b else "inferred",
            )  # fmt: skip


def _fp8_as_fp16(architecture: str) -> Iterator[Instruction]:
    """`mma` of fp8 where no such unit exists: ptxas converts to fp16 (NVIDIA/cutlass#1986)."""
    for a, b in _pairs(_FP8):
        for result in ("fp32", "fp16"):
            recorded = a == b and (architecture == "sm_100" or (architecture == "sm_90" and result == "fp16"))
            yield Instruction(
                gpu=architecture, unit="mma", a=a, b=b, dot_add=_dot_add(16, 25, result), span=32, form="late addend",
                evidence="vectors" if recorded else "inferred",
            )  # fmt: skip


def _scaled(architecture: str, unit: str) -> Iterator[Instruction]:
    """mxfp8, mxfp6, mxfp4 and nvfp4, which no recorded row holds."""
    for a, b in _pairs(NARROW):
        yield Instruction(
            gpu=architecture, unit=unit, a=a, b=b, dot_add=_dot_add(32, 25, "fp32"), span=32, form="block scales",
            scales=Scales(format="ue8m0", block=32), evidence="inferred" if "fp6" in a + b else "read",
        )  # fmt: skip
    groups = DotAdd(products=4, fraction=35, result="fp32", floor=-126)
    for scales in (
        Scales(format="ue4m3", block=16),
        Scales(format="ue8m0", block=16),
        Scales(format="ue8m0", block=32),
    ):
        yield Instruction(
            gpu=architecture, unit=unit, a="fp4_e2m1", b="fp4_e2m1", dot_add=groups, span=64, form="group scales",
            scales=scales, evidence="read",
        )  # fmt: skip


def _instructions() -> Iterator[Instruction]:
    for architecture in _FRACTIONS:
        for unit in _UNITS.get(architecture, ("mma",)):
            yield from _wide(architecture, unit)
    yield from _fp8_native("sm_89", "mma", 16, 13)
    yield from _fp8_native("sm_90", "wgmma", 32, 13)
    for architecture in ("sm_90", "sm_100", "sm_103"):
        yield from _fp8_as_fp16(architecture)
    for architecture, unit in (("sm_100", "tcgen05"), ("sm_103", "tcgen05"), ("sm_120", "mma")):
        yield from _fp8_native(architecture, unit, 32, 25)
        yield from _scaled(architecture, unit)


INSTRUCTIONS = tuple(_instructions())
"""Every instruction with a known arithmetic."""


def instruction(
    gpu: str,
    a: str,
    b: str | None = None,
    *,
    result: Literal["fp32", "fp16"] = "fp32",
    unit: str | None = None,
    scales: str | None = None,
    block: int | None = None,
    form: Form | None = None,
) -> Instruction:
    """The arithmetic of a GPU's instruction for factors of formats a and b (as a, if None).

    gpu: a name of `ARCHITECTURES` or an architecture, `sm_90`. unit: `mma`, `wgmma` or `tcgen05`; None: the one that
    large tiles use, which is not `mma` where the GPU has another. scales: format of block scales. block: elements of K
    for each scale. form: as of `Instruction`; fp4 with ue8m0 scales has `block scales` (PTX's kind mxf8f6f4) and `group
    scales` (mxf4nvf4).

    Raises ValueError, naming what the GPU has, if there is no such instruction, or several.
    """
    architecture = architecture_of(gpu)
    b = a if b is None else b
    for name in (a, b):
        if name not in FORMATS:
            raise ValueError(f"factors: {name!r} is no format of a tensor core. Known are {', '.join(FORMATS)}.")
    unit = _UNITS.get(architecture, ("mma",))[-1] if unit is None else unit
    rows = [row for row in INSTRUCTIONS if row.gpu == architecture and row.unit == unit]
    fitting = [
        row
        for row in rows
        if (row.a, row.b, row.dot_add.result.removesuffix("_e8m13")) == (a, b, result)
        and (None if row.scales is None else row.scales.format) == scales
        and (block is None or (row.scales is not None and row.scales.block == block))
        and form in (None, row.form)
    ]
    if len(fitting) == 1:
        return fitting[0]
    request = f"{gpu} {unit}: {a} x {b} -> {result}" + ("" if scales is None else f" with {scales} scales")
    if fitting:
        choices = "; ".join(f"{row.form}, {row.scales}" for row in fitting)
        raise ValueError(f"{request}: there are several. State block and form as one of: {choices}.")
    formats = ", ".join(dict.fromkeys(row.a for row in rows)) or "nothing: it has no such unit"
    raise ValueError(f"{request}: the GPU has no such instruction. It multiplies {formats}.")


def architecture_of(gpu: str) -> str:
    """The architecture of a GPU by its name, or itself, such as `sm_90`. Raises ValueError for an unknown one."""
    architecture = ARCHITECTURES.get(gpu, gpu)
    if architecture in _FRACTIONS:
        return architecture
    near = get_close_matches(gpu, ARCHITECTURES, n=1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    raise ValueError(
        f"gpu: {gpu!r} has no known arithmetic. {hint}Known are {', '.join(ARCHITECTURES)} and their architectures "
        f"({', '.join(_FRACTIONS)})."
    )
