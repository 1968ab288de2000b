"""Products of a tensor core in eager torch, for every instruction, on any device."""

from __future__ import annotations

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


def product(
    instruction: Instruction,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    a_scales: torch.Tensor | None = None,
    b_scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """a [batch, M, K] times b [batch, K, N] plus c [batch, M, N] -> [batch, M, N] of c's dtype.

    Raises ValueError if a or b holds numbers that its format lacks.
    """
    left = operand(instruction, _k_first(a.mT), None if a_scales is None else _k_first(a_scales.mT), "a")
    right = operand(instruction, _k_first(b), None if b_scales is None else _k_first(b_scales), "b")
    total = c.to(torch.float64).clone()
    _add_products(instruction, left, right, total)
    return with_one_nan(total.to(c.dtype))


def _k_first(x: torch.Tensor) -> torch.Tensor:
    return x.movedim(1, 0).contiguous()


def with_one_nan(x: torch.Tensor) -> torch.Tensor:
    """Every NaN as tensor cores give it."""
    integer, nan = _NAN[x.dtype]
    return x.view(integer).masked_fill(x.isnan(), nan).view(x.dtype)


def _add_products(instruction: Instruction, left: Operand, right: Operand, total: torch.Tensor) -> None:
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
