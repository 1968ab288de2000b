"""Matrix products as a GPU's matrix instructions give them, in eager torch on any device."""

from __future__ import annotations

import math

import torch

from moeparity.numerics.tensor_core.dot_add import dot_add, rounded
from moeparity.numerics.tensor_core.instructions import Instruction
from moeparity.numerics.tensor_core.operands import Operand, operand

_NAN = {torch.float32: (torch.int32, 0x7FFFFFFF), torch.float16: (torch.int16, 0x7FFF)}
"""The one NaN that tensor cores give."""

_TERMS_ON_CPU, _TERMS = 1 << 17, 1 << 25
"""Products held at once: on a CPU few, so that they stay in its caches; elsewhere."""

_ALTERNATE = tuple([k for k in range(32) if k % 4 // 2 == half] for half in (0, 1))
"""The two halves of 32 elements as fp8 converted to fp16 has them: 0, 1, 4, 5, .. and 2, 3, 6, 7, .."""


def multiply_add(
    instruction: Instruction,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    *,
    a_scales: torch.Tensor | None = None,
    b_scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """a [.., M, K] times b [.., K, N] plus c [.., M, N] -> [.., M, N], K walked upward in one accumulator.

    a, b: tensors of the formats' dtypes, or floats whose values the formats hold; for `tf32`, fp32 whose low 13 bits
    are ignored. c: of the result's dtype, None for zeros. a_scales [.., M, K / block], b_scales [.., K / block, N]: for
    instructions with scales. The result is fp32, or fp16 where the instruction says so.

    Raises ValueError if shapes, dtypes or values do not fit.
    """
    dtype = torch.float16 if instruction.dot_add.result == "fp16" else torch.float32
    _check(instruction, a, b, c, dtype)
    _check_scales(instruction, a, b, a_scales, b_scales)
    batch: tuple[int, ...] = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])  # type: ignore[no-untyped-call]
    shape = (*batch, a.shape[-2], b.shape[-1])
    # With one matrix b for all, the batch of a is more rows.
    batch = batch if b.dim() > 2 else ()
    left = operand(instruction, _k_first(a.mT, batch), None if a_scales is None else _k_first(a_scales.mT, batch), "a")
    right = operand(instruction, _k_first(b, batch), None if b_scales is None else _k_first(b_scales, batch), "b")
    addend = torch.zeros((), dtype=dtype, device=a.device) if c is None else c
    total = addend.to(torch.float64).expand(shape).reshape(*left.values.shape[1:], shape[-1]).clone()
    _in_blocks(instruction, left, right, total)
    return _narrowed(total.reshape(shape), dtype)


def _k_first(x: torch.Tensor, batch: tuple[int, ...]) -> torch.Tensor:
    """x [.., K, rows] -> [K, batch, rows], or [K, 1, all rows] where there is no batch."""
    spread = x.expand(*batch, *x.shape[-2:]) if batch else x
    many = math.prod(batch)
    rows = math.prod(spread.shape[:-2]) // max(many, 1) * x.shape[-1]
    return spread.movedim(-2, 0).reshape(x.shape[-2], many, rows).contiguous()


def _narrowed(total: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """fp64 values that `dtype` holds, in it, with the one NaN that tensor cores give."""
    bits, nan = _NAN[dtype]
    narrow = total.to(dtype)
    return torch.where(narrow.isnan(), torch.full_like(narrow.view(bits), nan), narrow.view(bits)).view(dtype)


def _in_blocks(instruction: Instruction, left: Operand, right: Operand, total: torch.Tensor) -> None:
    """left [K, batch, M], right [K, batch, N] -> added to total [batch, M, N], as many elements at a time as fit."""
    batch, rows, columns = total.shape
    most = (_TERMS_ON_CPU if total.device.type == "cpu" else _TERMS) // instruction.span
    many = max(1, most // max(1, rows * columns))
    few = max(1, most // max(1, columns))
    for first in range(0, batch, many):
        for start in range(0, rows, few):
            at = slice(first, first + many), slice(start, start + few)
            some, others = left.part(*at), right.part(at[0], slice(None))
            block = total[at]
            for k in range(0, left.values.shape[0], instruction.span):
                block = _pass(instruction, some, others, k, block)
            total[at] = block


def _pass(instruction: Instruction, left: Operand, right: Operand, k: int, addend: torch.Tensor) -> torch.Tensor:
    """One instruction's share of K, from k on."""
    arithmetic = instruction.dot_add
    if instruction.form == "group scales":
        return dot_add(arithmetic, *_groups(left, right, k, instruction.span), addend)
    if instruction.form == "late addend":
        partial = torch.zeros_like(addend)
        for half in _ALTERNATE:
            partial = dot_add(arithmetic, *_terms(left, right, [k + element for element in half]), partial)
        total = partial + addend
        # An ordinary addition: of fp64 sums of two fp32, rounding again changes nothing.
        return rounded(total, "fp16") if arithmetic.result == "fp16" else total.to(torch.float32).to(torch.float64)
    return dot_add(arithmetic, *_terms(left, right, slice(k, k + instruction.span)), addend)


def _terms(left: Operand, right: Operand, at: slice | list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Products [L, batch, M, N] and their exponents."""
    values = left.values[at].unsqueeze(-1) * right.values[at].unsqueeze(-2)
    return values, left.exponents[at].unsqueeze(-1) + right.exponents[at].unsqueeze(-2)


def _groups(left: Operand, right: Operand, k: int, span: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of 16 products each with their scales [span / 16, batch, M, N], and the exponents of the scales."""
    assert left.scales is not None
    assert right.scales is not None
    products = left.values[k : k + span].unsqueeze(-1) * right.values[k : k + span].unsqueeze(-2)
    scales, powers = _terms(left.scales, right.scales, slice(k // 16, (k + span) // 16))
    return products.reshape(-1, 16, *products.shape[1:]).sum(1) * scales, powers


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
