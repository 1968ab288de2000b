"""The one table of approximate instructions, whose bits no document fixes.

Those of fp32 are as an H200 has them; `tanh` and 16 bits, of which no table is public, are taken to be correctly
rounded, and every launch names those it met (`Run.assumed`). To use what was measured on a device instead:
`load(text, approximations={"tanh.approx.f32": function})`. Such a function maps numbers of the instruction's type, or
their bits, to the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal, localcontext
from functools import partial
from types import MappingProxyType

import numpy as np
import torch

from moeparity.numerics import cuda
from moeparity.numerics.special_functions.functions import APPROXIMATE, approximate
from moeparity.ptx.formats import Array, canonical, narrow, widen
from moeparity.ptx.instructions.packed import on_both_halves

_PLACES = 60
_ERROR = 2.0**-50
"""Relative error that a function of fp64 surely stays below."""


def _two_to(x: Decimal) -> Decimal:
    return Decimal(2) ** x


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


_EXACT: dict[str, tuple[Callable[[Array], Array], Callable[[Decimal], Decimal]]] = {
    "ex2": (np.exp2, _two_to),
    "tanh": (np.tanh, _tangent),
}


def _by_torch(function: Callable[..., torch.Tensor]) -> Callable[..., Array]:
    """A function of tensors of fp32 as one of arrays."""

    def computed(*operands: Array) -> Array:
        tensors = (torch.from_numpy(np.ascontiguousarray(x, np.float32)) for x in operands)
        return canonical(function(*tensors).numpy())

    return computed


APPROXIMATIONS: Mapping[str, Callable[..., Array]] = MappingProxyType({
    **{name: _by_torch(partial(approximate, function)) for name, function in APPROXIMATE.items()},
    "div.approx.f32": _by_torch(cuda.div_approx),
    "div.approx.ftz.f32": _by_torch(cuda.fast_divide),
    "div.full.f32": _by_torch(cuda.div_full),
    "tanh.approx.f32": _f32(*_EXACT["tanh"]),
    **{f"{root}.approx.{type_}": _half(type_, *_EXACT[root]) for root in _EXACT for type_ in ("f16", "bf16")},
    **{
        f"{root}.approx.{type_}x2": on_both_halves(_half(type_, *_EXACT[root]))
        for root in _EXACT
        for type_ in ("f16", "bf16")
    },
})  # fmt: skip
"""Name -> what it is taken to compute (tests/recorded/h200). `.ftz` flushes inputs and results; a full name that has it
goes before the name without.
"""

TAKEN_TO_ROUND = frozenset(name for name in APPROXIMATIONS if name.startswith("tanh") or not name.endswith(".f32"))
"""Those of which it is not known what a GPU computes."""
