"""Atomics. The threads of one instruction act one after the other, by ascending number, or in an order that the seed
draws.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from moeparity.ptx import arithmetic
from moeparity.ptx.formats import Array, dtype_of, flush
from moeparity.ptx.instructions.memory import space_of
from moeparity.ptx.instructions.packed import on_both_halves
from moeparity.ptx.spaces import inside, view
from moeparity.ptx.table import Opcode, Operation, declare
from moeparity.ptx.threads import Lanes

_OPERATIONS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
_SCOPES = "global shared shared::cta shared::cluster relaxed acquire release acq_rel volatile cta cluster gpu sys noftz"
_INTEGERS = ("u32", "s32", "u64", "s64", "b32", "b64", "b16")
_HALVES = ("f16", "bf16", "f16x2", "bf16x2")


@declare("atom", "red", modifiers=f"{_SCOPES} {' '.join(_OPERATIONS)}")
def _(opcode: Opcode) -> Operation:
    operation = opcode.one_of(_OPERATIONS)
    type_ = opcode.type_of((*_INTEGERS, "f32", "f64", *_HALVES))
    renew = _renewal(opcode, operation, type_)
    space, dtype = space_of(opcode), dtype_of(type_)

    def compute(lanes: Lanes, address: Array, *values: Array) -> Array:
        shape = lanes.index.shape
        where = lanes.machine.memory.positions(space, address, lanes, dtype.itemsize) // dtype.itemsize
        in_global = np.broadcast_to(inside(address, "global") if space == "" else np.full(1, space == "global"), shape)
        return one_by_one(
            view(lanes.machine.memory.octets, dtype),
            np.broadcast_to(where, shape),
            [np.broadcast_to(value, shape) for value in values],
            lanes,
            lambda old, operands, at: renew(old, operands, in_global[at]),
        )

    operands = (type_,) * (2 if operation == "cas" else 1)
    results = (type_,) if opcode.root == "atom" else ()
    return Operation(results=results, sources=("address", *operands), compute=compute, lanes=True, memory=True)


def one_by_one(
    numbers: Array, where: Array, values: list[Array], lanes: Lanes, renew: Callable[[Array, list[Array], Array], Array]
) -> Array:
    """Every thread's old number; threads of different addresses go together, which no result can tell."""
    order = np.arange(where.size)[lanes.order()]
    order = order[np.argsort(where[order], kind="stable")]
    new_address = np.concatenate([[True], where[order][1:] != where[order][:-1]])
    first = np.maximum.accumulate(np.where(new_address, np.arange(order.size), 0))
    turns = np.arange(order.size) - first
    old = np.zeros(where.size, numbers.dtype)
    for turn in range(int(turns.max()) + 1):
        at = order[turns == turn]
        old[at] = numbers[where[at]]
        numbers[where[at]] = renew(old[at], [value[at] for value in values], at)
    return old


def _renewal(opcode: Opcode, operation: str, type_: str) -> Callable[[Array, list[Array], Array], Array]:
    if type_ in {"f32", "f64"} and operation == "add":
        return lambda old, values, in_global: _float_sum(old, values[0], in_global)
    if type_ in _HALVES and operation == "add":
        single = type_.removesuffix("x2")

        def add(old: Array, value: Array) -> Array:
            return arithmetic.half(single, "add", old, value)

        total = on_both_halves(add) if type_ != single else add
        return lambda old, values, _: total(old, values[0])
    if type_ in {"f32", "f64", *_HALVES} and operation != "exch":
        raise opcode.unknown("floats are added or exchanged")
    computations: dict[str, Callable[..., Any]] = {
        "add": np.add,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "exch": _second,
        "cas": lambda old, expected, new: np.where(old == expected, new, old),
        "inc": lambda old, limit: np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1)),
        "dec": lambda old, limit: np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1)),
    }
    compute = computations[operation]
    return lambda old, values, _: compute(old, *values)


def _second(old: Array, new: Array) -> Array:
    return new


def _float_sum(old: Array, value: Array, in_global: Array) -> Array:
    """In global memory fp32 is flushed before and behind (PTX ISA, `atom`); in shared memory it is not."""
    total = arithmetic.add(old, value, "rn")
    if old.dtype == np.float64 or not in_global.any():
        return total
    return np.where(in_global, flush(arithmetic.add(flush(old), flush(value), "rn")), total)
