"""The schema of a file of GEMM plans, which `moeparity kernel plans` writes: `kind: plans` (docs/tensor-cores.md)."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from moeparity.documents.model import Model
from moeparity.numerics.tensor_core.gemm_plans import FIELDS

_RUN = r"\d+(-\d+)?:( \d+){9}"


def _run(text: str) -> str:
    if not re.fullmatch(_RUN, text):
        raise ValueError(f"{text!r} is no plan; expected rows, `:` and {len(FIELDS)} numbers, such as "
                         "`1-16: 66 393 3 2 0 0 35 0 5`")  # fmt: skip
    return text


def _version(text: str) -> str:
    if not re.fullmatch(r"\d+\.\d+\.\d+", text):
        raise ValueError(f"{text!r} is no version; expected such as 13.1.0")
    return text


Size = Annotated[int, Field(ge=1)]
Half = Literal["bf16", "fp16"]


class PlannedGemm(Model):
    """The plans of one GEMM, `x [rows, k] @ weight [n, k].T`: which one cuBLASLt takes depends on the number of rows.

    inputs: the dtype of x and weight. output: the dtype of the result. plans: one text for each range of rows, such as
    `1-16: 66 393 3 2 0 0 35 0 5`: the rows, and a number for each of `gemm_plans.FIELDS`.
    """

    n: Size
    k: Size
    inputs: Half
    output: Literal["bf16", "fp16", "fp32"]
    plans: Annotated[list[Annotated[str, AfterValidator(_run)]], Field(min_length=1)]


class PlansFile(Model):
    """`kind: plans`: what the heuristic of a cuBLASLt `library` (13.1.0) answers on a GPU, for GEMMs without a bias.

    device: the GPU's full name. workspace: bytes that a GEMM may use beside its result, which the answer depends on.
    """

    kind: Literal["plans"]
    gpu: str
    device: str
    library: Annotated[str, AfterValidator(_version)]
    workspace: Annotated[int, Field(ge=0)]
    gemms: Annotated[list[PlannedGemm], Field(min_length=1)]
