"""Matrix products as a GPU's matrix instructions give them, on any device of torch."""

from __future__ import annotations

import math

import torch

from moeparity.numerics.compiled import Executor
from moeparity.numerics.tensor_core import compiled, eager
from moeparity.numerics.tensor_core.instructions import Instruction


def multiply_add(
    instruction: Instruction,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    *,
    a_scales: torch.Tensor | None = None,
    b_scales: torch.Tensor | None = None,
    executor: Executor = "auto",
) -> torch.Tensor:
    """a [.., M, K] times b [.., K, N] plus c [.., M, N] -> [.., M, N], K walked upward in one accumulator.

    a, b: tensors of the formats' dtypes, or floats whose values the formats hold; for `tf32`, fp32 whose low 13 bits
    are ignored. c: of the result's dtype, None for zeros. a_scales [.., M, K / block], b_scales [.., K / block, N]: for
    instructions with scales. executor: `auto` compiles where that pays, with equal bits (compiled.py). The result is
    fp32, or fp16 where the instruction says so.

    Raises ValueError if shapes, dtypes or values do not fit.
    """
    dtype = torch.float16 if instruction.dot_add.result == "fp16" else torch.float32
    _check(instruction, a, b, c, dtype)
    _check_scales(instruction, a, b, a_scales, b_scales)
    batch = _batch(a, b)
    shape = (*batch, a.shape[-2], b.shape[-1])
    addend = (torch.zeros((), dtype=dtype, device=a.device) if c is None else c).expand(shape)
    # With one matrix b for all, the batch of a is more rows.
    batch = batch if b.dim() > 2 else ()
    left, right, addend = (_stack(x, batch) for x in (a, b, addend))
    if compiled.pays(instruction, left, addend, executor):
        return compiled.product(instruction, left, right, addend).reshape(shape)
    scales = [None if x is None else _stack(x, batch) for x in (a_scales, b_scales)]
    return eager.product(instruction, left, right, addend, *scales).reshape(shape)


def _batch(a: torch.Tensor, b: torch.Tensor) -> tuple[int, ...]:
    # torch takes longer to broadcast two shapes than a small product takes.
    if a.dim() == b.dim() == 2:
        return ()
    batch: tuple[int, ...] = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])  # type: ignore[no-untyped-call]
    return batch


def _stack(x: torch.Tensor, batch: tuple[int, ...]) -> torch.Tensor:
    """x [.., m, n] -> [batch, m, n], or [1, all rows, n] where there is no batch."""
    if batch:
        return x.expand(*batch, *x.shape[-2:]).reshape(math.prod(batch), *x.shape[-2:])
    return x.reshape(1, math.prod(x.shape[:-1]), x.shape[-1])


def _check(
    instruction: Instruction, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, dtype: torch.dtype
) -> None:
    if a.dim() < 2 or b.dim() < 2 or a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"{instruction}: a {tuple(a.shape)} and b {tuple(b.shape)} do not fit; expected [.., M, K] and [.., K, N]."
        )
    if a.shape[-1] % instruction.span:
        raise ValueError(
            f"{instruction}: K is {a.shape[-1]}, which {instruction.span} does not divide. Fill a and b up with zeros, "
            "as kernels do."
        )
    if c is not None and c.dtype != dtype:
        raise ValueError(f"{instruction}: c is {c.dtype}; expected {dtype}.")


def _check_scales(
    instruction: Instruction,
    a: torch.Tensor,
    b: torch.Tensor,
    a_scales: torch.Tensor | None,
    b_scales: torch.Tensor | None,
) -> None:
    if instruction.scales is None:
        if a_scales is not None or b_scales is not None:
            raise ValueError(f"{instruction}: the instruction takes no scales. Multiply by them outside.")
        return
    blocks = a.shape[-1] // instruction.scales.block
    wanted = ((*a.shape[:-1], blocks), (*b.shape[:-2], blocks, b.shape[-1]))
    shapes = tuple(None if scales is None else tuple(scales.shape) for scales in (a_scales, b_scales))
    if shapes != wanted:
        raise ValueError(f"{instruction}: scales of a and b have shapes {shapes}; expected {wanted}.")
