"""One call of an engine's kernel, and what this project makes of the same numbers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from moeparity.numerics.bits import int_view
from moeparity.profiles.fidelity import Compiled, How
from tests.engines import live
from tests.engines.triton_kernels.alone import ROOTS
from tests.verified import FOLDER

ENGINES = {"live_vllm": "vLLM 0.33.0", "live_sglang": "SGLang 0.5.23",
           "live_te": "TransformerEngine 2.20.2", "live_inductor": "vLLM 0.33.0, Inductor 2.13.0",
           "live_tensorrt_llm": "TensorRT-LLM 07b7b618eb",
           "live_vllm_delta": "vLLM 0.33.0", "live_sglang_delta": "SGLang 0.5.23"}  # fmt: skip
PACKAGES = {"live_vllm": "vllm", "live_sglang": "sglang", "live_te": "transformer_engine", "live_inductor": "vllm",
            "live_tensorrt_llm": "tensorrt_llm", "live_vllm_delta": "vllm", "live_sglang_delta": "sglang"}  # fmt: skip
ALSO = {"live_inductor": ("vllm",)}
"""Folders of programs that import a whole engine."""
HOW = "RUN_KERNELS"
"""The environment variable that `backend` goes by."""
ASSUMED = "assumed"
"""The output that names the approximate instructions a case has met, as bytes; of kernels run as PTX."""
CONTRACTIBLE = "contractible"
"""The output that says how many products and sums of these kernels ptxas may still fuse."""
FOLDERS = {"interpreter": ("triton", "ml_dtypes"), "ptx": ("triton-3.8",)}
SAYS = {"interpreter": "in Triton 3.7.1's interpreter", "ptx": "as Triton 3.8.0's PTX for sm_90"}
Outputs = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The node whose values a case verifies, as `tests.verified.record` takes them."""

    op: str
    at: Mapping[str, Any]
    blind: tuple[str, ...] = ()
    operands: torch.dtype | None = torch.bfloat16
    p: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Case:
    """`arguments` goes to the function `kind` of the program; `ours` makes the outputs of that name, `other_outputs`
    some that must differ. `shapes` and `says` are for the table.
    """

    program: str
    kernel: str
    kind: str
    shapes: str
    arguments: Mapping[str, Any]
    ours: Callable[..., Outputs]
    other_outputs: Callable[..., Outputs]
    says: str
    recorded: tuple[Seen, ...] = ()
    nodes: tuple[Callable[[], Seen], ...] = ()
    """As `recorded`, of nodes that are run with other values to know which of them the numbers tell."""
    blind: str = ""
    by_logs: bool = False
    """`ours` and `other_outputs` are given what the engine made, for the logarithms of their sums."""

    @property
    def engine(self) -> str:
        """With its version."""
        return ENGINES[self.program]

    @property
    def name(self) -> str:
        """Unlike any other case's."""
        return f"{self.engine} {self.kernel} {self.shapes}"


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Numbers of all outputs, how many are other bits, and how many of the control's are."""

    numbers: int
    differ: int
    control: int


def run(cases: list[Case], how: str = "interpreter") -> dict[str, Outputs]:
    """The engines' outputs by the names of the cases, one process for each program; `how`: interpreter or ptx."""
    outputs: dict[str, Outputs] = {}
    for program in dict.fromkeys(case.program for case in cases):
        there(PACKAGES[program])
        requests = {case.name: {"kind": case.kind, **case.arguments} for case in cases if case.program == program}
        with patch.dict(os.environ, {HOW: how}):
            outputs |= live.ask(f"triton_kernels.{program}", (*ALSO.get(program, ()), *FOLDERS[how]), requests)
    return outputs


def there(package: str) -> None:
    """Skips the test that asks where an engine's files are not there."""
    if not ROOTS[package].is_dir():
        how = live.how_filled(ROOTS[package].name)
        install = "python -m tests.engines.cuda.toolchain install" if package == "vllm" else how
        pytest.skip(f"not compared with live kernels: no {package} ({install})")


def is_there(case: Case) -> bool:
    """Whether its engine's files are."""
    return ROOTS[PACKAGES[case.program]].is_dir()


def compared(case: Case, live_outputs: Outputs) -> Compared:
    """Bit for bit: a -0 is not a +0."""
    by_logs = (live_outputs,) if case.by_logs else ()
    ours, control = case.ours(*by_logs), case.other_outputs(*by_logs)
    assert ours.keys() <= live_outputs.keys()
    assert control.keys() <= ours.keys()
    return Compared(
        numbers=sum(x.numel() for x in ours.values()),
        differ=sum(_differ(ours[name], live_outputs[name]) for name in ours),
        control=sum(_differ(control[name], live_outputs[name]) for name in control),
    )


def _differ(ours: Tensor, theirs: Tensor) -> int:
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), (
        ours.dtype,
        ours.shape,
        theirs.dtype,
        theirs.shape,
    )
    return int((int_view(ours.contiguous()) != int_view(theirs.contiguous())).sum())


def approximate(outputs: Outputs) -> tuple[str, ...]:
    """The approximate instructions that a case of PTX has met."""
    names = outputs.get(ASSUMED)
    return tuple(bytes(names.tolist()).decode().split(", ")) if names is not None and names.numel() else ()


def evidence(case: Case, outputs: Outputs, how: str = "interpreter") -> Iterator[dict[str, Any]]:
    """What the case has seen, as `tests.verified.record` takes it."""
    ran: How = "ptx" if how == "ptx" else "triton_interpreter"
    compiled = (
        Compiled(
            compiler="Triton 3.8.0",
            architecture="sm_90",
            assumed=approximate(outputs),
            contractible=int(outputs[CONTRACTIBLE]),
        )
        if ran == "ptx"
        else None
    )
    against = f"{case.engine} {SAYS[how]}"
    nodes = case.nodes if FOLDER in os.environ else ()
    for node in (*case.recorded, *(node() for node in nodes)):
        yield {"op": node.op, "at": node.at, "against": against, "operands": node.operands, "p": node.p,
               "blind": node.blind, "how": ran, "compiled": compiled}  # fmt: skip
