"""The one table of approximate instructions, whose bits no document fixes.

Each is taken to be correctly rounded. Every launch names those it met and takes so (`Run.assumed`). `TABLES` are those
of fp32 as an H200 has them: `load(text, approximations=TABLES)`. To use what was measured on a
device instead: `load(text, approximations={"ex2.approx.f32": function})`. Such a function maps numbers of the
instruction's type, or their bits, to the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal, localcontext
from types import MappingProxyType

import numpy as np
import torch

from moeparity.numerics.special_functions.functions import APPROXIMATE, approximate
from moeparity.ptx.formats import Array, canonical, narrow, widen
from moeparity.ptx.instructions.packed import on_both_halves

_PLACES = 60
_ERROR = 2.0**-50
"""Relative error that a function of fp64 surely stays below."""
_LEAST = np.float32(2.0**-126)
"""The smallest normal number of fp32."""


def _two_to(x: Decimal) -> Decimal:
    return Decimal(2) ** x


def _logarithm(x: Decimal) -> Decimal:
    return x.ln() / Decimal(2).ln()


def _tangent(x: Decimal) -> Decimal:
    grown = (2 * x).exp()
    return (grown - 1) / (grown + 1)


def rounded(
    x: Array,
    function: Callable[[Array], Array],
    exactly: Callable[[Decimal], Decimal],
    narrowed: Callable[[Array], Array],
) -> Array:
    """The function of x, rounded to nearest by `narrowed`, as if it had been computed without error.

    It is computed in fp64. Where an error of fp64 could change the rounding, `exactly` computes it with 60 decimal
    places.
    """
    wide = x.astype(np.float64)
    value = function(wide)
    below, above = narrowed(value * (1 - _ERROR)), narrowed(value * (1 + _ERROR))
    result = narrowed(value)
    for at in np.flatnonzero((below != above) & np.isfinite(value)):
        with localcontext() as context:
            context.prec = _PLACES
            exact = exactly(Decimal(float(wide[at])))
            nearest = float(exact)
            # To odd, so that the last rounding is the only one.
            if Decimal(nearest) != exact and np.float64(nearest).view(np.int64) & 1 == 0:
                nearest = float(np.nextafter(nearest, np.inf if exact > Decimal(nearest) else -np.inf))
        result[at] = narrowed(np.array([nearest]))[0]
    return result


def _f32(function: Callable[[Array], Array], exactly: Callable[[Decimal], Decimal]) -> Callable[[Array], Array]:
    return lambda x: canonical(rounded(x, function, exactly, lambda value: value.astype(np.float32)))


def _half(
    type_: str, function: Callable[[Array], Array], exactly: Callable[[Decimal], Decimal]
) -> Callable[[Array], Array]:
    return lambda bits: rounded(widen(bits, type_), function, exactly, lambda value: narrow(value, type_))


def _trigonometric(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Of fp64 with 29 bits to spare: nearest but for some 1 of 10^7 numbers, where it may be the neighbour."""
    return lambda x: canonical(function(x.astype(np.float64)).astype(np.float32))


def _divide(a: Array, b: Array) -> Array:
    return canonical(a / b)


def _by_reciprocal(a: Array, b: Array) -> Array:
    """a times 1 / b, which is 0 where |b| is above 2^126 (PTX ISA, `div`); below, correctly rounded."""
    return canonical(np.where(np.abs(b) > np.float32(2.0**126), a * np.copysign(np.float32(0), b), a / b))


_EXACT: dict[str, tuple[Callable[[Array], Array], Callable[[Decimal], Decimal]]] = {
    "ex2": (np.exp2, _two_to),
    "tanh": (np.tanh, _tangent),
}

APPROXIMATIONS: Mapping[str, Callable[..., Array]] = MappingProxyType({
    "ex2.approx.f32": _f32(*_EXACT["ex2"]),
    "lg2.approx.f32": _f32(np.log2, _logarithm),
    "tanh.approx.f32": _f32(*_EXACT["tanh"]),
    **{f"{root}.approx.{type_}": _half(type_, *_EXACT[root]) for root in _EXACT for type_ in ("f16", "bf16")},
    **{
        f"{root}.approx.{type_}x2": on_both_halves(_half(type_, *_EXACT[root]))
        for root in _EXACT
        for type_ in ("f16", "bf16")
    },
    "rcp.approx.f32": lambda x: _divide(np.ones(1, np.float32), x),
    "sqrt.approx.f32": lambda x: canonical(np.sqrt(x)),
    # No fp32 number's lies nearer than 2^-51.7 to a tie, so fp64 decides (moeparity/ops/kernels/norm.py).
    "rsqrt.approx.f32": lambda x: canonical((1 / np.sqrt(x.astype(np.float64))).astype(np.float32)),
    "sin.approx.f32": _trigonometric(np.sin),
    "cos.approx.f32": _trigonometric(np.cos),
    "div.approx.f32": _by_reciprocal,
    "div.full.f32": _divide,
})  # fmt: skip
"""Name without `.ftz` -> what it is taken to compute."""


def _by_table(name: str) -> Callable[[Array], Array]:
    def looked_up(x: Array) -> Array:
        numbers = torch.from_numpy(np.ascontiguousarray(x, np.float32))
        return canonical(approximate(name, numbers).numpy())

    return looked_up


def _quotient(*, full: bool) -> Callable[[Array, Array], Array]:
    """a times the reciprocal of b by table; a small b, and with `full` a large one, is scaled first, and a with it.

    As ptxas 13.5.37 writes div.approx and div.full out for sm_90 (nvdisasm).
    """
    reciprocal = _by_table("rcp")

    def divided(a: Array, b: Array) -> Array:
        scale = np.where(np.abs(b) >= _LEAST, np.float32(1), np.float32(2.0**24))
        if full:
            scale = np.where(np.abs(b) > np.float32(2.0**126), np.float32(0.25), scale)
        return canonical(reciprocal(b * scale) * (a * scale))

    return divided


TABLES: Mapping[str, Callable[..., Array]] = MappingProxyType({
    **{name: _by_table(function) for name, function in APPROXIMATE.items()},
    "div.approx.f32": _quotient(full=False),
    "div.full.f32": _quotient(full=True),
})  # fmt: skip
"""Name without `.ftz` -> what an H200 computes (tests/recorded/h200); `tanh` and 16 bits have no table."""
