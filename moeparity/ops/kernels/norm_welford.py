"""Welford's algorithm for the statistic of `rms_norm`: threads compute mean and M2 of parts of a row and merge them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from moeparity.numerics.fma import fma

_WARP = 32


@dataclass(frozen=True, slots=True)
class _Moments:
    """Mean and M2, [..., n] each, of n parts of a row, and the number of elements in each part, [n], in the same
    dtype.
    """

    mean: torch.Tensor
    m2: torch.Tensor
    count: torch.Tensor

    def first(self, n: int) -> _Moments:
        return _Moments(self.mean[..., :n], self.m2[..., :n], self.count[..., :n])

    def last(self, n: int) -> _Moments:
        return _Moments(self.mean[..., -n:], self.m2[..., -n:], self.count[..., -n:])


def mean_square(x: torch.Tensor, threads: int) -> torch.Tensor:
    """M2 / C + mean^2 [..., 1] of x [..., C] in fp32 or fp64, in x's dtype, by `threads` threads in whole warps.

    Thread i takes elements i, i + threads, and so on. Lanes are merged in each warp, then warps, the upper half into
    the lower. Imitates torch's WelfordOps and cuda_utils::BlockReduce (2.13.0). Products that are added are contracted,
    as nvcc does by default.
    """
    whole = _by_thread(x, threads)
    split = (threads // _WARP, _WARP)
    lanes = _Moments(*(part.view(*part.shape[:-1], *split) for part in (whole.mean, whole.m2, whole.count)))
    warps = _folded(lanes)
    merged = _folded(_Moments(*(part.squeeze(-1) for part in (warps.mean, warps.m2, warps.count))))
    variance = merged.m2 / torch.full_like(merged.m2, x.shape[-1])
    return fma(merged.mean, merged.mean, variance)


def _by_thread(x: torch.Tensor, threads: int) -> _Moments:
    mean, m2 = x.new_zeros(*x.shape[:-1], threads), x.new_zeros(*x.shape[:-1], threads)
    count = x.new_zeros(threads)
    for step, first in enumerate(range(0, x.shape[-1], threads), start=1):
        values = x[..., first : first + threads]
        n = values.shape[-1]
        delta = values - mean[..., :n]
        # Divide by a tensor, since torch's GPU kernel multiplies by the reciprocal of a number.
        mean[..., :n] += delta / torch.full_like(delta, step)
        m2[..., :n] = fma(delta, values - mean[..., :n], m2[..., :n])
        count[:n] = step
    return _Moments(mean, m2, count)


def _folded(moments: _Moments) -> _Moments:
    while (n := moments.mean.shape[-1]) > 1:
        moments = _merged(moments.first(n // 2), moments.last(n // 2))
    return moments


def _merged(a: _Moments, b: _Moments) -> _Moments:
    """Both parts merged; if one has no elements, the other one."""
    delta, count = b.mean - a.mean, a.count + b.count
    share = b.count / count
    mean = fma(delta, share.expand_as(delta), a.mean)
    m2 = fma(delta * delta * a.count, share.expand_as(delta), a.m2 + b.m2)
    empty_a, empty_b = a.count == 0, b.count == 0
    return _Moments(
        torch.where(empty_a, b.mean, torch.where(empty_b, a.mean, mean)),
        torch.where(empty_a, b.m2, torch.where(empty_b, a.m2, m2)),
        count,
    )
