"""How the tensor cores of a GPU add up a GEMM, as an order that is written `tensor_core(h100)`. Importing this needs no
torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from moeparity.numerics.orders import OrderError
from moeparity.numerics.tensor_core.instructions import Instruction, architecture_of, instruction

GRAIN = 64
"""cuBLASLt cuts K into parts of whole multiples of so many 16-bit elements (algorithm 66 on Hopper: run on an H200, and
facebookexperimental/triton db4666f, bitequiv).
"""

USUAL = ("tensor_core(a100)", "tensor_core(h100)")
"""Those that lists of values name, of two generations; every GPU of `instructions.ARCHITECTURES` may stand there."""

_WRITTEN = re.compile(r"tensor_core\(\s*(?P<gpu>\w+)\s*(?:,\s*promote\s*=\s*(?P<promote>\d+)\s*)?\)")


@dataclass(frozen=True, slots=True)
class TensorCoreOrder:
    """One chain of dot-adds over K on the tensor cores of `gpu`, in one fp32 accumulator.

    promote: after so many of K a new chain begins, and the sums of chains are added in fp32, ascending (0: one chain).
    """

    gpu: str
    promote: int = 0

    def __str__(self) -> str:
        return f"tensor_core({self.gpu}, promote={self.promote})" if self.promote else f"tensor_core({self.gpu})"

    def instruction(self, multiplied: str) -> Instruction:
        """What multiplies operands of that format. Raises ValueError if the GPU has nothing that does."""
        return _instruction(self.gpu, multiplied)

    def parts(self, k: int) -> Iterator[slice]:
        """The chains over K."""
        size = self.promote or max(k, 1)
        return (slice(start, min(start + size, k)) for start in range(0, max(k, 1), size))


@cache
def _instruction(gpu: str, multiplied: str) -> Instruction:
    return instruction(gpu, multiplied)


@cache
def tensor_core_order(text: str) -> TensorCoreOrder | None:
    """The order that `text` writes; None if it writes none of tensor cores. Raises OrderError for an unknown GPU."""
    if not text.startswith("tensor_core"):
        return None
    written = _WRITTEN.fullmatch(text)
    if written is None:
        raise OrderError(f"{text!r} is no order of tensor cores; expected such as {USUAL[1]}.")
    promote = written["promote"]
    if promote is not None and int(promote) == 0:
        raise OrderError(f"{text!r} begins a chain after nothing; leave `promote` out for one chain.")
    try:
        architecture_of(written["gpu"])
    except ValueError as error:
        raise OrderError(str(error).removeprefix("gpu: ")) from None
    return TensorCoreOrder(written["gpu"], int(promote or 0))


def multiplied(inputs: str, *, tf32: bool) -> str | None:
    """The format in which tensor cores multiply operands of a dtype; None for those left to CUDA cores."""
    if inputs in ("fp32", "fp64"):
        return "tf32" if tf32 and inputs == "fp32" else None
    return inputs


def misfit(order: TensorCoreOrder, k: int, inputs: str, *, tf32: bool) -> str | None:
    """Why tensor cores cannot add up k products of operands of a dtype in this order; None if they can."""
    format_ = multiplied(inputs, tf32=tf32)
    if format_ is None:
        return None
    try:
        of_gpu = order.instruction(format_)
    except ValueError as error:
        return f"{error} Name another GPU, or set a dtype that it multiplies."
    if k % of_gpu.span:
        return (
            f"{k} inputs, and {order.gpu} takes {of_gpu.span} {format_} at a time. Which kernel a library then calls "
            "is not known: set `native` here."
        )
    if order.promote % of_gpu.span:
        return f"{order} begins chains within the {of_gpu.span} {format_} taken at a time. Set a multiple of that."
    return None
