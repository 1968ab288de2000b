"""Arithmetic that floats have, and the names that they share with integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from moeparity.ptx import arithmetic
from moeparity.ptx.formats import Array, canonical, dtype_of, flush, saturate
from moeparity.ptx.instructions.integers import INTEGERS, integer_arithmetic
from moeparity.ptx.instructions.packed import HALVES, INTEGER_PAIRS, half_arithmetic, pairs_sum
from moeparity.ptx.table import Opcode, Operation, declare

FLOATS = ("f32", "f64")
MODES = ("rn", "rz", "rm", "rp")
_SHAPED = "rn rz rm rp ftz sat"


@declare("add", "sub", "mul", "fma", "mad", modifiers=f"{_SHAPED} lo hi wide relu")
def _(opcode: Opcode) -> Operation:
    type_ = opcode.types[-1] if opcode.types else ""
    if type_ in INTEGERS and opcode.root != "fma":
        return integer_arithmetic(opcode)
    if type_ in INTEGER_PAIRS:
        return pairs_sum(opcode)
    if type_ in HALVES and opcode.root != "mad":
        return half_arithmetic(opcode)
    type_ = opcode.type_of(FLOATS)
    mode = opcode.one_of(MODES, "rn")
    if mode != "rn" and type_ == "f64":
        raise opcode.unknown("fp64 is rounded to nearest here")
    if opcode.modifiers & {"lo", "hi", "wide", "relu"}:
        raise opcode.unknown("a float has no such form of it")
    computations: dict[str, Callable[..., Any]] = {
        "add": lambda a, b: arithmetic.add(a, b, mode),
        "sub": lambda a, b: arithmetic.add(a, -b, mode),
        "mul": lambda a, b: arithmetic.multiply(a, b, mode),
        "fma": lambda a, b, c: arithmetic.fused(a, b, c, mode),
        "mad": lambda a, b, c: arithmetic.fused(a, b, c, mode),
    }
    compute = computations[opcode.root]
    count = 3 if opcode.root in {"fma", "mad"} else 2
    return Operation(results=(type_,), sources=(type_,) * count, compute=shaped(opcode, compute))


@declare("div", "sqrt", "rcp", modifiers=f"{_SHAPED} approx full")
def _(opcode: Opcode) -> Operation:
    if opcode.root == "div" and opcode.types and opcode.types[-1] in INTEGERS:
        return integer_arithmetic(opcode)
    type_ = opcode.type_of(FLOATS)
    mode = opcode.one_of((*MODES, "approx", "full"))
    if mode in {"approx", "full"}:
        return approximation(opcode)
    if opcode.has("sat") or (type_ == "f64" and mode != "rn"):
        raise opcode.unknown("no such form")
    computations: dict[str, Callable[..., Any]] = {
        "div": lambda a, b: arithmetic.divide(a, b, mode),
        "sqrt": lambda a: arithmetic.root(a, mode),
        "rcp": lambda a: arithmetic.divide(np.ones(1, a.dtype), a, mode),
    }
    compute = computations[opcode.root]
    count = 2 if opcode.root == "div" else 1
    return Operation(results=(type_,), sources=(type_,) * count, compute=shaped(opcode, compute))


@declare("ex2", "lg2", "rsqrt", "sin", "cos", "tanh", modifiers="approx ftz")
def _(opcode: Opcode) -> Operation:
    return approximation(opcode)


def approximation(opcode: Opcode) -> Operation:
    """What the one table of approximate instructions has of this name, `.ftz` around it as written."""
    name = ".".join(part for part in opcode.text.split(".") if part != "ftz")
    function = opcode.approximations.get(opcode.text, opcode.approximations.get(name))
    if function is None:
        raise opcode.unknown(f"the table of approximate instructions has no `{name}`")
    type_ = opcode.types[0]
    ftz = type_ == "f32" and opcode.has("ftz")
    compute = (lambda *x: flush(canonical(function(*map(flush, x))))) if ftz else function
    count = 2 if opcode.root == "div" else 1
    return Operation(results=(type_,), sources=(type_,) * count, compute=compute, assumed=name)


@declare("rem")
def _(opcode: Opcode) -> Operation:
    return integer_arithmetic(opcode)


def _of_other_types(opcode: Opcode) -> Operation | None:
    """What an instruction is that integers and 16-bit floats have under the same name; None where it is for neither."""
    type_ = opcode.types[-1] if opcode.types else ""
    if type_ in INTEGERS:
        return integer_arithmetic(opcode)
    return half_arithmetic(opcode) if type_ in HALVES else None


@declare("min", "max", modifiers="ftz NaN xorsign abs relu")
def _(opcode: Opcode) -> Operation:
    of_other_types = _of_other_types(opcode)
    if of_other_types is not None:
        return of_other_types
    type_ = opcode.type_of(FLOATS)
    if opcode.modifiers & {"xorsign", "abs", "relu"}:
        raise opcode.unknown("`.xorsign.abs` is not built, and `.relu` is of integers")
    choose = arithmetic.smaller if opcode.root == "min" else arithmetic.larger

    def compute(a: Array, b: Array) -> Array:
        chosen = choose(a, b)
        return canonical(np.where(np.isnan(a) | np.isnan(b), a.dtype.type(np.nan), chosen))

    count = len(opcode.statement.operands) - 1
    compute_ = compute if opcode.has("NaN") else choose
    if count == 3:
        return Operation(
            results=(type_,), sources=(type_,) * 3, compute=shaped(opcode, lambda a, b, c: compute_(compute_(a, b), c))
        )
    return Operation(results=(type_,), sources=(type_, type_), compute=shaped(opcode, compute_))


@declare("neg", "abs", modifiers="ftz")
def _(opcode: Opcode) -> Operation:
    of_other_types = _of_other_types(opcode)
    if of_other_types is not None:
        return of_other_types
    type_ = opcode.type_of(FLOATS)
    compute: Callable[..., Array] = np.negative if opcode.root == "neg" else np.abs
    return Operation(results=(type_,), sources=(type_,), compute=shaped(opcode, compute))


@declare("copysign")
def _(opcode: Opcode) -> Operation:
    type_ = opcode.type_of(FLOATS)
    return Operation(results=(type_,), sources=(type_, type_), compute=lambda sign, x: np.copysign(x, sign))


@declare("testp", modifiers="finite infinite number notanumber normal subnormal")
def _(opcode: Opcode) -> Operation:
    type_ = opcode.type_of(FLOATS)
    least = np.finfo(dtype_of(type_)).smallest_normal
    computations: dict[str, Callable[..., Any]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda x: ~np.isnan(x),
        "notanumber": np.isnan,
        "normal": lambda x: np.isfinite(x) & (np.abs(x) >= least),
        "subnormal": lambda x: (np.abs(x) < least) & (x != 0),
    }
    compute = computations[opcode.one_of(("finite", "infinite", "number", "notanumber", "normal", "subnormal"))]
    return Operation(results=("pred",), sources=(type_,), compute=compute)


def shaped(opcode: Opcode, compute: Callable[..., Array]) -> Callable[..., Array]:
    """The computation with `.ftz` before and behind it, then `.sat`, where the name has them."""
    if not opcode.modifiers & {"ftz", "sat"}:
        return compute
    if opcode.types[-1] == "f64":
        raise opcode.unknown("fp64 has neither `.ftz` nor `.sat`")
    ftz, sat = opcode.has("ftz"), opcode.has("sat")

    def around(*operands: Array) -> Array:
        result = compute(*(flush(x) for x in operands)) if ftz else compute(*operands)
        result = flush(result) if ftz else result
        return saturate(result) if sat else result

    return around
