"""The schema of a kernel file, which says how a compiled kernel is launched: `kind: kernel` (docs/certify.md)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from moeparity.documents.model import Model
from moeparity.plan.spec.base import SettingsByName

Number = str | int
"""A whole number, or an expression of sizes: `min(1024, hidden // 8)`."""
Computes = Literal["sum", "linear", "combine", "rms_norm", "softmax", "router", "swiglu"]
Dtype = Literal["bf16", "fp16", "fp32", "int32", "int64"]


class Argument(Model):
    """One parameter of the kernel: a tensor that it reads (`input`), writes (`output`) or both, zeroed memory of some
    shape (`scratch`), or a number (`scalar`).
    """

    input: str | None = None
    output: str | None = None
    scratch: Annotated[list[Number], Field(min_length=1)] | None = None
    scalar: str | int | float | None = None
    dtype: Dtype | None = None

    @model_validator(mode="after")
    def _one_role(self) -> Argument:
        roles = [self.input is not None or self.output is not None, self.scratch is not None, self.scalar is not None]
        if sum(roles) != 1:
            raise ValueError(
                "an argument is one of `input: NAME`, `output: NAME` (both for a tensor that is written in place), "
                "`scratch: [EXTENTS]` and `scalar: NUMBER`"
            )
        if self.scalar is not None and self.dtype is not None:
            raise ValueError("a scalar has the type of the kernel's own parameter. Leave `dtype` out")
        return self


class KernelFile(Model):
    """`kind: kernel`: a CUDA source (`cuda`) or its PTX (`ptx`), the kernel's name there, what it computes, its launch.

    flags: nvcc's; with `ptx` those it was compiled with, for information only. sizes: further names that expressions
    may use.
    """

    kind: Literal["kernel"]
    cuda: str | None = None
    ptx: str | None = None
    kernel: str
    flags: list[str] = []
    architecture: Annotated[str, Field(pattern=r"^sm_\d+[af]?$")] = "sm_90"
    computes: Computes
    dtype: Literal["bf16", "fp16", "fp32"]
    arguments: Annotated[list[Argument], Field(min_length=1)]
    sizes: SettingsByName = {}
    grid: Number | Annotated[list[Number], Field(min_length=1)]
    block: Number | Annotated[list[Number], Field(min_length=1)]
    shared: Number = 0

    @model_validator(mode="after")
    def _one_source(self) -> KernelFile:
        if (self.cuda is None) == (self.ptx is None):
            raise ValueError("a kernel comes from exactly one of `cuda: FILE.cu`, which nvcc compiles, and `ptx: FILE`")
        return self
