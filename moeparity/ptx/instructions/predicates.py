"""Comparisons and what chooses by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from moeparity.ptx.formats import Array, dtype_of, flush, widen
from moeparity.ptx.instructions.integers import INTEGERS
from moeparity.ptx.instructions.packed import HALVES
from moeparity.ptx.table import Opcode, Operation, declare

_PLAIN: dict[str, Callable[[Array, Array], Any]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_UNORDERED = {"equ": "eq", "neu": "ne", "ltu": "lt", "leu": "le", "gtu": "gt", "geu": "ge"}
_BITS = ("b16", "b32", "b64")
_COMPARISONS = (*_PLAIN, *_UNSIGNED, *_UNORDERED, "num", "nan")
_JOINS: dict[str, Callable[[Array, Array], Any]] = {
    "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor,
}  # fmt: skip
_MODIFIERS = " ".join((*_COMPARISONS, *_JOINS, "ftz"))


@declare("setp", modifiers=_MODIFIERS)
def _(opcode: Opcode) -> Operation:
    type_ = opcode.type_of((*_BITS, *INTEGERS, "f32", "f64", *HALVES))
    compare, join = _comparison(opcode, type_), _join(opcode)
    pair = opcode.has_group
    sources = (type_, type_, "pred") if join else (type_, type_)

    def compute(a: Array, b: Array, c: Array | None = None) -> Any:
        true = compare(a, b)
        if join is None or c is None:
            return (true, ~true) if pair else true
        return (join(true, c), join(~true, c)) if pair else join(true, c)

    def halves(a: Array, b: Array, c: Array | None = None) -> Any:
        parts = [compare(*((x >> np.uint32(at)).astype(np.uint16) for x in (a, b))) for at in (0, 16)]
        return tuple(join(part, c) if join and c is not None else part for part in parts)

    results = ("pred", "pred") if pair else ("pred",)
    packed = type_.endswith("x2")
    if packed and not pair:
        raise opcode.unknown("a packed comparison has two results")
    return Operation(results=results, sources=sources, compute=halves if packed else compute)


@declare("set", modifiers=_MODIFIERS)
def _(opcode: Opcode) -> Operation:
    """All ones or 1.0 where it is true."""
    if len(opcode.types) != 2 or opcode.types[0] not in {"u32", "s32", "f32"} or opcode.types[1] in HALVES:
        raise opcode.unknown("results known: u32, s32, f32, of integers and fp32, fp64")
    result, type_ = opcode.types
    compare, join = _comparison(opcode, type_), _join(opcode)
    true = np.array(1.0 if result == "f32" else -1).astype(dtype_of(result))

    def compute(a: Array, b: Array, c: Array | None = None) -> Array:
        holds = compare(a, b)
        holds = join(holds, c) if join and c is not None else holds
        return np.where(holds, true, np.zeros(1, true.dtype))

    sources = (type_, type_, "pred") if join else (type_, type_)
    return Operation(results=(result,), sources=sources, compute=compute)


@declare("selp")
def _(opcode: Opcode) -> Operation:
    type_ = opcode.type_of((*_BITS, *INTEGERS, "f32", "f64"))
    bits = f"b{8 * dtype_of(type_).itemsize}"
    return Operation(results=(bits,), sources=(bits, bits, "pred"), compute=lambda a, b, p: np.where(p, a, b))


@declare("slct", modifiers="ftz")
def _(opcode: Opcode) -> Operation:
    """The first where the third is not negative."""
    if len(opcode.types) != 2 or opcode.types[1] not in {"s32", "f32"}:
        raise opcode.unknown("it chooses by an s32 or an f32")
    bits = f"b{8 * dtype_of(opcode.types[0]).itemsize}"
    return Operation(
        results=(bits,), sources=(bits, bits, opcode.types[1]), compute=lambda a, b, c: np.where(c >= 0, a, b)
    )


def _join(opcode: Opcode) -> Callable[[Array, Array], Any] | None:
    if not opcode.modifiers & _JOINS.keys():
        return None
    return _JOINS[opcode.one_of(tuple(_JOINS))]


def _comparison(opcode: Opcode, type_: str) -> Callable[[Array, Array], Any]:
    word = opcode.one_of(_COMPARISONS)
    compare = _floats(word) if type_ in {"f32", "f64", *HALVES} else _integers(opcode, word, type_)
    if type_ in HALVES:
        single = type_.removesuffix("x2")
        return lambda a, b: compare(widen(a, single), widen(b, single))
    if opcode.has("ftz"):
        return lambda a, b: compare(flush(a), flush(b))
    return compare


def _integers(opcode: Opcode, word: str, type_: str) -> Callable[[Array, Array], Any]:
    if word in _PLAIN and (word in {"eq", "ne"} or type_ not in _BITS):
        return _PLAIN[word]
    if word in _UNSIGNED and type_.startswith("u"):
        return _PLAIN[_UNSIGNED[word]]
    raise opcode.unknown(f"`.{word}` does not compare {type_}")


def _floats(word: str) -> Callable[[Array, Array], Any]:
    """Ordered comparisons are false of a NaN, those with a `u` true."""

    def compare(a: Array, b: Array) -> Any:
        nan = np.isnan(a) | np.isnan(b)
        if word in {"num", "nan"}:
            return nan if word == "nan" else ~nan
        true = _PLAIN[_UNORDERED.get(word, word)](a, b)
        return true | nan if word in _UNORDERED else true & ~nan

    return compare
