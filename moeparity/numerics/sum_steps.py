"""What each kind of step of a sum computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from moeparity.numerics.fma import exact_sum
from moeparity.numerics.rounding import add, rounded, working

Value = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
"""A register: values, or a pair of totals and compensations."""


def as_tensor(value: Value) -> torch.Tensor:
    """The values of a register without compensations."""
    assert isinstance(value, torch.Tensor)
    return value


def _add(total: Value, operands: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    return add(as_tensor(total), operands[0], dtype)


def _fused(total: Value, operands: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    total = as_tensor(total)
    return rounded(exact_sum([total.to(working(total.dtype, dtype)), *operands]), dtype)


def _kahan(total: Value, operands: Sequence[torch.Tensor], dtype: torch.dtype) -> Value:
    """Kahan 1965: what an addition lost is subtracted from the next value."""
    sum_so_far, lost = _pair(total, dtype)
    value = add(operands[0], -lost, dtype)
    new_sum = add(sum_so_far, value, dtype)
    return new_sum, add(add(new_sum, -sum_so_far, dtype), -value, dtype)


def _neumaier(total: Value, operands: Sequence[torch.Tensor], dtype: torch.dtype) -> Value:
    """Neumaier 1974: what each addition lost of the smaller operand is summed separately and added at the end."""
    sum_so_far, lost = _pair(total, dtype)
    new_sum = add(sum_so_far, operands[0], dtype)
    if_sum_is_larger = add(add(sum_so_far, -new_sum, dtype), operands[0], dtype)
    otherwise = add(add(operands[0], -new_sum, dtype), sum_so_far, dtype)
    return new_sum, add(lost, torch.where(sum_so_far.abs() >= operands[0].abs(), if_sum_is_larger, otherwise), dtype)


def _pair(total: Value, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return total if isinstance(total, tuple) else (total, torch.zeros((), dtype=dtype))


def _kahan_total(total: Value, operands: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    return _pair(total, dtype)[0]


def _neumaier_total(total: Value, operands: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    return add(*_pair(total, dtype), dtype)


def _round(total: Value, operands: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    return rounded(as_tensor(total), dtype)


STEPS: dict[str, Callable[[Value, Sequence[torch.Tensor], torch.dtype], Value]] = {
    "add": _add,
    "fused": _fused,
    "kahan": _kahan,
    "neumaier": _neumaier,
    "kahan_total": _kahan_total,
    "neumaier_total": _neumaier_total,
    "round": _round,
}
"""Kind of step -> function (first operand, other operands, dtype to round to) -> next register. The executor itself
makes `fma`, since it knows the factors.
"""
