"""How far two tensors lie apart: bits, absolute and relative error, and ulps."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from moeparity.metrics.exact import Exact, summed
from moeparity.numerics.bits import int_view

_FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
# On the CPU the temporaries of one chunk should stay in cache; a GPU wants few launches and can afford the memory.
_CPU_CHUNK = 1 << 17
_DEVICE_CHUNK = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """The divergence of a candidate tensor from a reference tensor, as sums that add up exactly over micro-batches, in
    any order.

    A pair is one element of the reference with its counterpart. A pair with a NaN or an infinity on either side is
    *excluded* if its bits differ; if they agree it contributes 0 to the sums and maxima of differences.

    elements: pairs compared.
    equal: pairs with equal bits. Tensors of different dtypes are compared after a cast to the wider one,
        `torch.promote_types` (fp32 for bf16 with fp16). +0 and -0 are not equal. A NaN equals the same NaN of the same
        dtype, but no NaN of another dtype, since casts may change its payload.
    max_abs, sum_abs: of |candidate - reference|, subtracted and accumulated in fp64.
    max_ulp, sum_ulp: distance on the ordered integer line of the *coarser* dtype (that with the larger machine epsilon)
        after both were rounded to it, to nearest even (fp64 to 16 bits by way of fp32, as torch casts). Neighbouring
        floats are 1 apart, +0 and -0 are 0 apart. A finite value that overflows in that dtype stands at infinity, 1
        past the largest finite value.
    squared_difference, squared_reference: sums of squares in fp64 over the pairs that are finite on both sides. They
        can't overflow for fp32 and narrower dtypes; fp64 values beyond about 1e154 give inf.
    nonfinite: number of elements that are NaN or infinite, in the reference and in the candidate.
    excluded: pairs left out of every sum and maximum, as defined above.
    """

    elements: int
    equal: int
    max_abs: float
    sum_abs: Exact
    max_ulp: int
    sum_ulp: int
    squared_difference: Exact
    squared_reference: Exact
    nonfinite: tuple[int, int]
    excluded: int = 0

    @property
    def equal_share(self) -> float:
        """Fraction of pairs with equal bits; 1 if there are no pairs."""
        return self.equal / self.elements if self.elements else 1.0

    @property
    def mean_abs(self) -> float:
        """Mean absolute difference over the pairs not excluded; 0 without pairs, NaN when all are excluded."""
        return self._mean(self.sum_abs)

    @property
    def mean_ulp(self) -> float:
        """Mean ulp distance over the pairs not excluded; 0 without pairs, NaN when all are excluded."""
        return self._mean(self.sum_ulp)

    @property
    def relative_l2(self) -> float:
        """Euclidean norm of the difference over that of the reference, both over the pairs finite on both sides.

        0 when the difference is 0, inf when only the reference is 0, NaN when all pairs are excluded.
        """
        if 0 < self.elements == self.excluded:
            return math.nan
        if self.squared_difference == 0.0:
            return 0.0
        if self.squared_reference == 0.0:
            return math.inf
        return math.sqrt(self.squared_difference) / math.sqrt(self.squared_reference)

    def __add__(self, other: Error) -> Error:
        """The error of both sets of pairs together: counts and sums add, maxima take the greater."""
        return summed(
            self,
            other,
            max_abs=max(self.max_abs, other.max_abs),
            max_ulp=max(self.max_ulp, other.max_ulp),
            nonfinite=(self.nonfinite[0] + other.nonfinite[0], self.nonfinite[1] + other.nonfinite[1]),
        )

    def _mean(self, total: float) -> float:
        if not self.elements:
            return 0.0
        compared = self.elements - self.excluded
        return total / compared if compared else math.nan


def compare(reference: Tensor, candidate: Tensor) -> Error:
    """The divergence of `candidate` from `reference`, element by element.

    Shapes: equal, any. Dtypes: bf16, fp16, fp32 or fp64, not necessarily the same. Units: those of the tensors; ulps
    of the coarser dtype. The definitions stand with `Error`.
    Raises TypeError for any other dtype, ValueError for shapes that differ.
    """
    for name, tensor in (("reference", reference), ("candidate", candidate)):
        if tensor.dtype not in _FLOATS:
            raise TypeError(f"{name} is {tensor.dtype}; bf16, fp16, fp32 or fp64 expected")
    if reference.shape != candidate.shape:
        raise ValueError(f"shapes differ: reference {tuple(reference.shape)}, candidate {tuple(candidate.shape)}")
    size = _CPU_CHUNK if reference.device.type == "cpu" else _DEVICE_CHUNK
    ours = torch.split(reference.reshape(-1), size)
    # If a value is compared with itself, every bit is equal and need not be read.
    theirs = ours if candidate is reference else torch.split(candidate.reshape(-1), size)
    first, *errors = (_chunk(a, b) for a, b in zip(ours, theirs, strict=True))
    return sum(errors, first)


def _chunk(a: Tensor, b: Tensor) -> Error:
    """`compare` of two flat tensors."""
    equal_bits = None if a is b else _equal_bits(a, b)
    equal = a.numel() if equal_bits is None else int(equal_bits.count_nonzero())
    x = a.double()
    y = x if a is b else b.double()
    squared_reference = float(x.dot(x))
    # A finite sum of squares proves that every element is finite; the reference's sum is needed anyway.
    if math.isfinite(squared_reference) and (equal == a.numel() or math.isfinite(float(y.dot(y)))):
        return _finite_error(a, b, x, y, equal, squared_reference)
    finite_x, finite_y = x.isfinite(), y.isfinite()
    finite = finite_x & finite_y
    equal_bits = torch.ones_like(finite) if equal_bits is None else equal_bits
    a, b, x, y = a[finite], b[finite], x[finite], y[finite]
    error = _finite_error(a, b, x, y, int(equal_bits[finite].count_nonzero()), float(x.dot(x)))
    return replace(
        error,
        elements=equal_bits.numel(),
        equal=equal,
        nonfinite=(int((~finite_x).count_nonzero()), int((~finite_y).count_nonzero())),
        excluded=int((~finite & ~equal_bits).count_nonzero()),
    )


def _equal_bits(a: Tensor, b: Tensor) -> Tensor:
    """Which elements have the same bits in the wider of both dtypes; a NaN never equals one of another dtype."""
    wide = torch.promote_types(a.dtype, b.dtype)
    equal_bits = int_view(a.to(wide)) == int_view(b.to(wide))
    return equal_bits if a.dtype == b.dtype else equal_bits & ~a.isnan()


def _finite_error(a: Tensor, b: Tensor, x: Tensor, y: Tensor, equal: int, squared_reference: float) -> Error:
    """The error of two finite flat tensors. x, y: the same in fp64; equal: how many elements have the same bits."""
    max_abs = sum_abs = squared_difference = 0.0
    max_ulp = sum_ulp = 0
    if equal < a.numel():
        difference = (x - y).abs_()
        max_abs, sum_abs = float(difference.max()), float(difference.sum())
        squared_difference = float(difference.dot(difference))
        max_ulp, sum_ulp = _ulps(a, b)
    return Error(
        elements=a.numel(),
        equal=equal,
        max_abs=max_abs,
        sum_abs=Exact(sum_abs),
        max_ulp=max_ulp,
        sum_ulp=sum_ulp,
        squared_difference=Exact(squared_difference),
        squared_reference=Exact(squared_reference),
        nonfinite=(0, 0),
    )


def _ulps(a: Tensor, b: Tensor) -> tuple[int, int]:
    """Maximum and sum of the ulp distances of two flat tensors, which must not be empty or have a NaN."""
    coarse = max(a.dtype, b.dtype, key=lambda dtype: torch.finfo(dtype).eps)
    i, j = _on_line(a.to(coarse)), _on_line(b.to(coarse))
    if coarse is not torch.float64:
        distance = (i - j).abs_()
        return int(distance.max()), int(distance.sum())
    # Opposite fp64 signs can be 2**64 - 2**53 apart: the difference is right modulo 2**64, so read it as unsigned.
    distance = torch.maximum(i, j) - torch.minimum(i, j)
    high, low = (int(((distance >> 32) & 0xFFFFFFFF).sum()), int((distance & 0xFFFFFFFF).sum()))
    return int((distance ^ -(1 << 63)).max()) + (1 << 63), (high << 32) + low


def _on_line(x: Tensor) -> Tensor:
    """The place of each value on the ordered integer line: 0 for both zeros, one step per representable value.

    int32 for the 16-bit dtypes and int64 for the others, so that a difference of two places fits (except in fp64).
    """
    raw = int_view(x)
    kind = torch.iinfo(raw.dtype)
    # -1 (all ones) for negative values, 0 for others: negative values have their bits inverted and count down from 0.
    negative = raw >> kind.bits - 1
    places = (negative & kind.max).bitwise_xor_(raw).sub_(negative)
    return places.to(torch.int32 if raw.dtype == torch.int16 else torch.int64)
