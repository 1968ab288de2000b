"""One kernel call as the estimate of memory sees it, and what many kernels need: upper bounds, from shapes alone. What
only one op needs is in its declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from moeparity.numerics.orders import NATIVE
from moeparity.numerics.tensor_core.gemm_orders import tensor_core_order
from moeparity.numerics.tensor_core.planned_order import planned_order

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes by name, as the kernel takes the weights: those of experts with the experts' axis first."""

BYTES = {"bf16": 2, "bf16_rz": 2, "fp16": 2, "fp32": 4, "fp64": 8}
INTEGER = 8
EXACT = 8
"""Bytes of an fp64 number; exponentials are computed in fp64 so that they are rounded correctly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One kernel call on `tokens` tokens, in sequences of `length`.

    weights: by port. params: of the node. active: the attributes that take effect. dtype: what the node runs in.
    inputs, outputs: elements per token of each; input_bytes: bytes of one element of each input; integers: whether the
    first input is whole numbers. heads: into how many the first input is cut. Of a value in partial sums all are
    counted. message: the dtype of partial sums that it adds up; None where it adds up none, or nobody asks. arch: the
    GPU that it runs on, as in `sm90`; None on a CPU. state_numbers: how many numbers it keeps of each sequence.
    """

    weights: Shapes
    params: Mapping[str, Any]
    tokens: int
    length: int
    active: Mapping[str, Any]
    dtype: str
    input_bytes: Sequence[int]
    integers: bool
    inputs: Sequence[int]
    outputs: Sequence[int]
    heads: int
    message: str | None = None
    arch: str | None = None
    state_numbers: int = 0

    @property
    def wide(self) -> int:
        """Bytes of an element of the dtype in which a step is computed."""
        double = self.input_bytes[0] == BYTES["fp64"] and not self.integers
        return 8 if double or "fp64" in (self.dtype, *self.active.values()) else 4

    def bytes_of(self, site: str) -> int:
        """Bytes of one element at a site."""
        return BYTES[str(self.active.get(site, self.dtype))]

    @property
    def input_dtype(self) -> str:
        """The dtype of the first input; if several dtypes have its width, the one that the node runs in."""
        size = self.input_bytes[0]
        return self.dtype if BYTES[self.dtype] == size else next(name for name, n in BYTES.items() if n == size)

    @property
    def rounds_to_tf32(self) -> bool:
        """Whether the operands of its GEMMs are rounded to TF32."""
        return self.active.get("tf32") == "yes"


def weight_bytes(shape: Sequence[int], count: int, dtype: str) -> int:
    """Bytes of `count` tensors of a shape."""
    return prod(shape) * count * BYTES[dtype]


def on_tensor_cores(call: Call, order: str, rows: int, columns: int, tokens: int) -> int:
    """Bytes of a GEMM with a weight [rows, columns] if the choice `order` has it on tensor cores: operands as fp64 with
    their exponents, and the fp32 result four times over; 0 in other orders.
    """
    written = str(call.active.get(order, NATIVE))
    if tensor_core_order(written) is None and planned_order(written) is None:
        return 0
    return 10 * columns * (rows + tokens) + 16 * rows * tokens


def stored(call: Call) -> Sequence[int]:
    """Bytes of one element of each output, rounded to `output`; partial sums have their own site."""
    return [call.bytes_of("partial" if "partial" in call.active else "output")] * len(call.outputs)


def elementwise(call: Call) -> int:
    """Scratch memory of an op that computes in a wider dtype, element by element."""
    return 4 * call.wide * call.tokens * max(*call.inputs, *call.outputs)


def as_first(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> Sequence[int]:
    """The width of an output that is as wide as the first input."""
    return inputs[:1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """How large the values of an op are, and what its kernel needs.

    widths: elements per token of each output, from the shapes of the weights, the parameters and the widths of the
        inputs.
    output_bytes: bytes of one element of each output.
    scratch: bytes needed for a moment, beside inputs and outputs, of an op in one piece.
    """

    widths: Callable[[Shapes, Mapping[str, Any], Sequence[int]], Sequence[int]] = as_first
    output_bytes: Callable[[Call], Sequence[int]] = stored
    scratch: Callable[[Call], int] = elementwise

    def cut_copies(self, call: Call) -> int:
        """What cutting an op into pieces copies: its weights, its inputs, and once more its result, to gather it."""
        weights = sum(weight_bytes(shape, 1, call.dtype) for shape in call.weights.values())
        values = sum(n * size for n, size in zip(call.inputs, call.input_bytes, strict=True))
        values += sum(n * size for n, size in zip(call.outputs, self.output_bytes(call), strict=True))
        return 2 * weights + call.tokens * values
