"""The orders of GEMMs as cuBLASLt's plans have them, by shape and number of rows, in one text. Importing this needs no
torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from moeparity.numerics.orders import OrderError
from moeparity.numerics.tensor_core.cuda_core_plans import CudaCorePlan
from moeparity.numerics.tensor_core.gemm_plans import CUTLASS, GemmPlan, PlanError
from moeparity.numerics.tensor_core.instructions import Instruction, architecture_of, instruction

Shape = tuple[int, int, str, str]
"""N, K, the dtype of the operands, the dtype of the result."""
Run = tuple[int, int, GemmPlan | CudaCorePlan | int]
"""Rows from and to, and the plan of GEMMs with so many; a number is an algorithm whose order is not modelled."""

PREFIX = "cublaslt("
EXAMPLE = "cublaslt(h200: bf16 bf16 5120x2048 1-16=3 17-8192=1)"

_RUN = re.compile(
    r"(\d+)(?:-(\d+))?=(?:(\d+)(?:/(\d+)/(\d+)/(\d+))?|cores(?P<cores>\d+/\d+/\d+)|algorithm(?P<algorithm>\d+))"
)
_GEMM = re.compile(r"\s*(\w+) (\w+) (\d+)x(\d+)((?: [\d\-]+=[\w/]+)+)\s*")


@dataclass(frozen=True)
class PlannedOrder:
    """What cuBLASLt does on the tensor cores of `gpu`, by shape and number of rows."""

    gpu: str
    runs: Mapping[Shape, tuple[Run, ...]]

    def __str__(self) -> str:
        return f"{PREFIX}{self.gpu}: {'; '.join(_written(shape, runs) for shape, runs in self.runs.items())})"

    def instruction(self, multiplied: str) -> Instruction:
        """The GPU's instruction for operands of that format. Raises ValueError if it has none."""
        return instruction(self.gpu, multiplied)

    def missing(self, shape: Shape) -> str | None:
        """Why no GEMM of a shape can be computed; None if some can."""
        if shape in self.runs:
            return None
        n, k, inputs, output = shape
        return (
            f"the plans hold no GEMM of N {n}, K {k} with {inputs} operands and a {output} result. Ask again for this "
            f"checkpoint (`moeparity kernel plans`), or set tensor_core({self.gpu}) here."
        )

    def plan(self, rows: int, shape: Shape) -> GemmPlan | CudaCorePlan:
        """The plan of a GEMM. Raises PlanError if there is none, or if its order is not modelled."""
        reason = self.missing(shape)
        if reason is not None:
            raise PlanError(reason)
        for first, last, plan in self.runs[shape]:
            if first <= rows <= last and not isinstance(plan, int):
                return plan
            if first <= rows <= last:
                raise PlanError(
                    f"cuBLASLt takes algorithm {plan} for N {shape[0]}, K {shape[1]} and {rows} rows; how it adds is "
                    f"not modelled with these numbers, as it mostly is for 66, {', '.join(map(str, CUTLASS))} and, on "
                    "Hopper, 11, 13 and 16. Set another order here."
                )
        raise PlanError(
            f"the plans of N {shape[0]}, K {shape[1]} hold other numbers of rows than {rows}. Ask again with "
            f"`moeparity kernel plans --rows {rows}`, or set tensor_core({self.gpu}) here."
        )


def _written(shape: Shape, runs: tuple[Run, ...]) -> str:
    n, k, inputs, output = shape
    spans = (f"{first}-{last}" if last > first else str(first) for first, last, _ in runs)
    plans = (f"algorithm{plan}" if isinstance(plan, int) else str(plan) for *_, plan in runs)
    return f"{inputs} {output} {n}x{k} {' '.join(f'{span}={plan}' for span, plan in zip(spans, plans, strict=True))}"


@cache
def planned_order(text: str) -> PlannedOrder | None:
    """The order that `text` writes; None if it writes none of plans. Raises OrderError if it is misspelt."""
    if not text.startswith(PREFIX):
        return None
    gpu, colon, gemms = text.removeprefix(PREFIX).removesuffix(")").partition(":")
    matches = [_GEMM.fullmatch(gemm) for gemm in gemms.split(";")]
    if not text.endswith(")") or not colon or None in matches:
        raise OrderError(f"{text!r} holds no plans of cuBLASLt; expected such as {EXAMPLE}. A side's `plans:` sets it.")
    try:
        architecture_of(gpu)
    except ValueError as error:
        raise OrderError(str(error).removeprefix("gpu: ")) from None
    shapes = {(int(m[3]), int(m[4]), m[1], m[2]): tuple(_runs(m[5])) for m in matches if m is not None}
    return PlannedOrder(gpu, shapes)


def _runs(text: str) -> Iterator[Run]:
    for word in text.split():
        run = _RUN.fullmatch(word)
        if run is None:
            raise OrderError(f"{word!r} is no plan; expected such as 1-16=3, in {EXAMPLE}.")
        first, last, *numbers = run.groups()[:6]
        plan: GemmPlan | CudaCorePlan | int
        if run["algorithm"]:
            plan = int(run["algorithm"])
        elif run["cores"]:
            plan = CudaCorePlan(*map(int, run["cores"].split("/")))
        else:
            plan = GemmPlan(*map(int, filter(None, numbers)))
        yield int(first), int(last or first), plan
