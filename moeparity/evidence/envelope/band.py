"""A value in the band of legal orders: each output element goes from the least to the greatest of what orders give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moeparity.numerics.bits import int_view

AT_ONCE = 1 << 18
"""Output elements whose draws are compared together."""
SLACK = 2
"""Elements outside that are no evidence, and how many times more of them a value may have than a draw does."""
FAR = 4
"""How many times further outside than any draw an element may lie and be no evidence; and as many ulps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A value against one side's own value and N legal orders of that side's numerics, all on the same inputs.

    An element's band goes from the least to the greatest of the side's value and the draws'.

    draws, tokens, elements: how many were drawn and compared.
    differing: elements whose bits differ between the side's value and the other one; outside: of these, how many lie
        outside their band; furthest: how far at most, in ulps of the coarser dtype at the row's greatest magnitude.
    own_outside: by draw, how many elements lie outside the band of the side's value and the *other* draws: what a
        legal order looks like; own_furthest: how far at most.
    in_row, own_in_row: the most elements outside in one row, of the other value and of any draw.
    varying: elements whose band is wider than one value.
    """

    draws: int
    tokens: int
    elements: int
    differing: int = 0
    outside: int = 0
    furthest: float = 0.0
    own_outside: tuple[int, ...] = ()
    own_furthest: float = 0.0
    in_row: int = 0
    own_in_row: int = 0
    varying: int = 0

    @property
    def inside(self) -> bool:
        """No more elements outside than a draw has among the others, up to `SLACK`, in all and in any one row, and none
        much further, up to `FAR`: what one token alone has outside is not made less by others that have nothing.
        """
        pairs = (self.outside, max(self.own_outside, default=0)), (self.in_row, self.own_in_row)
        few = all(outside <= SLACK * draw_outside + SLACK for outside, draw_outside in pairs)
        return few and self.furthest <= FAR * max(1.0, self.own_furthest)


def band(base: Tensor, value: Tensor, draws: Sequence[Tensor], tokens: int) -> Band:
    """`value` in the band of `base` and the draws: all of one shape [..., C], any float dtypes, draws in `base`'s."""
    total = Band(draws=len(draws), tokens=tokens, elements=base.numel(), own_outside=(0,) * len(draws))
    rows = max(1, AT_ONCE // base.shape[-1])
    flat = (torch.split(x.reshape(-1, base.shape[-1]), rows) for x in (base, value, *draws))
    for base_rows, value_rows, *draw_rows in zip(*flat, strict=True):
        part = _part(base_rows, value_rows, torch.stack(draw_rows))
        total = Band(
            draws=total.draws,
            tokens=tokens,
            elements=total.elements,
            differing=total.differing + part.differing,
            outside=total.outside + part.outside,
            furthest=max(total.furthest, part.furthest),
            own_outside=tuple(a + b for a, b in zip(total.own_outside, part.own_outside, strict=True)),
            own_furthest=max(total.own_furthest, part.own_furthest),
            in_row=max(total.in_row, part.in_row),
            own_in_row=max(total.own_in_row, part.own_in_row),
            varying=total.varying + part.varying,
        )
    return total


def _part(base: Tensor, value: Tensor, draws: Tensor) -> Band:
    """base, value [n, C], draws [N, n, C]."""
    order_statistics = torch.cat([base.unsqueeze(0), draws]).double().sort(0).values
    low, high = order_statistics[0], order_statistics[-1]
    dtype = torch.promote_types(base.dtype, value.dtype)
    differences, wide_value = int_view(base.to(dtype)) != int_view(value.to(dtype)), value.double()
    # A NaN lies in no band.
    outliers = differences & ~((low <= wide_value) & (wide_value <= high))
    draw_values = draws.double()
    inner = order_statistics[1].expand_as(draw_values), order_statistics[-2].expand_as(draw_values)
    extremes = (draw_values < inner[0]) | (draw_values > inner[1])
    coarser = max(base.dtype, value.dtype, key=lambda d: torch.finfo(d).eps)
    return Band(
        draws=len(draws),
        tokens=0,
        elements=base.numel(),
        differing=int(differences.sum()),
        outside=int(outliers.sum()),
        furthest=_furthest(wide_value, low, high, outliers, coarser),
        own_outside=tuple(extremes.flatten(1).sum(-1).tolist()),
        own_furthest=_furthest(draw_values, *inner, extremes, coarser),
        in_row=_most(outliers),
        own_in_row=_most(extremes),
        varying=int((low < high).sum()),
    )


def _most(outliers: Tensor) -> int:
    """The most in one row."""
    return int(outliers.sum(-1).max()) if outliers.numel() else 0


def _furthest(value: Tensor, low: Tensor, high: Tensor, outliers: Tensor, dtype: torch.dtype) -> float:
    """The greatest distance from the band, in ulps of `dtype` at the greatest magnitude of the row: an ulp of an
    element that cancelled to nearly 0 would say nothing. Infinite where a value or its band is not finite.
    """
    if not bool(outliers.any()):
        return 0.0
    greatest = torch.maximum(low.abs(), high.abs()).nan_to_num(0.0, posinf=0.0)
    _, exponent = torch.frexp(greatest.amax(-1, keepdim=True))
    ulp = torch.ldexp(torch.full_like(low, torch.finfo(dtype).eps), (exponent - 1).expand_as(low))
    distance = torch.maximum(low - value, value - high) / ulp
    return float(distance[outliers].nan_to_num(math.inf).max())
