"""Sums and fused multiply-adds with one rounding, exact on any device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from moeparity.numerics.bits import same_bits

_SPLIT = 2.0**27 + 1


def fma(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """`a * b + c`, broadcast, rounded once to fp32, or to fp64 if an operand is fp64.

    In fp32 it is `torch.addcmul` if a self-test on that device finds it to be an fma, else `fma_by_round_to_odd`: the
    same bits, NaN payloads aside. In fp64 it is exact as long as neither the product nor its rounding error leaves
    fp64's normal range (|a|, |b| < 2^996 and |a * b| between 2^-969 and 2^1023).
    """
    if torch.float64 in (a.dtype, b.dtype, c.dtype):
        product, error = _two_product(a.double(), b.double())
        plain = product + c
        return _where_finite(plain, torch.where(product == 0, plain, exact_sum([error, product, c.double()])))
    a, b, c = a.float(), b.float(), c.float()
    return torch.addcmul(c, a, b) if addcmul_is_fma(a.device.type) else fma_by_round_to_odd(a, b, c)


def fma_by_round_to_odd(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """fp32 fma by way of fp64: the product is exact there, and the sum is rounded to odd, so that rounding it again is
    safe.

    Boldo and Melquiond, Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd, IEEE
    Transactions on Computers 57(4), 2008.
    """
    return sum_to_odd(a.double() * b.double(), c.double()).float()


@lru_cache(maxsize=8)
def addcmul_is_fma(device: str) -> bool:
    """Whether `torch.addcmul` in fp32 is an fma on this kind of device, as ATen is built and dispatched here.

    Tried with products on a tie that a tiny addend breaks (a multiplication followed by an addition, and plain fp64,
    get them wrong) and with cancellations; with short, long, contiguous, strided and broadcast tensors, since these
    take different code.
    """
    tie = 1 + 2.0**-12
    triples = [
        (tie, tie, 2.0**-80),
        (tie, tie, -(2.0**-80)),
        (tie, -tie, -(2.0**-80)),
        (tie, tie, -1.0),
        (3e20, 1 / 3, -1e20),
    ]
    for repeats in (1, 3, 13, 1000):
        a, b, c = torch.tensor(triples * repeats, device=device).t().contiguous()
        reference = fma_by_round_to_odd(a, b, c)
        results = [torch.addcmul(c, a, b), torch.addcmul(*(x.repeat_interleave(2)[::2] for x in (c, a, b)))]
        if not all(same_bits(result, reference) for result in results):
            return False
        column = c[: len(triples)].view(-1, 1)
        if not same_bits(torch.addcmul(column, a, b[:1]), fma_by_round_to_odd(a, b[:1], column)):
            return False
    return True


def exact_sum(terms: Sequence[torch.Tensor]) -> torch.Tensor:
    """The exact sum of some tensors, rounded once to nearest even: to fp32, or to fp64 if a term is fp64.

    By Shewchuk's expansions in fp64, folded from the smallest component up with rounding to odd. As in IEEE additions
    from left to right, a sum of only -0 is -0, and infinite or NaN terms have the same effect. No partial sum of fp64
    terms may exceed 2^1023.
    """
    wide = [term.double() for term in terms]
    plain, zero = wide[0], wide[0] == 0
    for term in wide[1:]:
        plain, zero = plain + term, zero & (term == 0)
    components = _expansion(wide)
    if torch.float64 not in [term.dtype for term in terms]:
        return _where_finite(plain, torch.where(zero, plain, _odd_sum(components))).float()
    # The last rounding, to nearest, is of the largest component that is not 0 plus all the rest.
    largest = torch.zeros_like(components[-1])
    smaller = []
    for component in reversed(components):
        has_largest = largest != 0
        smaller.append(torch.where(has_largest, component, 0.0))
        largest = torch.where(has_largest, largest, component)
    return _where_finite(plain, torch.where(zero, plain, largest + _odd_sum(smaller[::-1])))


def _expansion(terms: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The exact sum as fp64 numbers that do not overlap, the smallest first (Shewchuk's grow-expansion)."""
    components: list[torch.Tensor] = []
    for term in terms:
        errors, total = [], term
        for component in components:
            total, error = _two_sum(total, component)
            errors.append(error)
        components = [*errors, total]
    return components


def _odd_sum(components: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum of an expansion, rounded to odd."""
    total = components[0]
    for component in components[1:]:
        total = sum_to_odd(component, total)
    return total


def _where_finite(plain: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """`total`, or `plain` where that is infinite or NaN, since error terms mean nothing there."""
    return torch.where(plain.isfinite(), total, plain)


def _two_sum(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The rounded sum and its error; together exact (Knuth)."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


def _two_product(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The rounded product and its error; together exact (Dekker, with Veltkamp's splitting)."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scaled = x * _SPLIT
    high = scaled - (scaled - x)
    return high, x - high


def sum_to_odd(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The fp64 sum rounded to odd: if inexact, the neighbour whose last bit is odd.

    Rounding it again, to 51 bits or fewer in any direction, gives the same as rounding once.
    """
    total, error = _two_sum(a, b)
    bits = total.view(torch.int64)
    # Away from zero the integer grows, for either sign.
    toward = torch.where((error > 0) == (total > 0), 1, -1)
    inexact = (error != 0) & error.isfinite() & (bits & 1 == 0)
    return torch.where(inexact, bits + toward, bits).view(torch.float64)
