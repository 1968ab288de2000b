"""`mbarrier`: barriers in shared memory, at which threads arrive and go on, and ask later whether a phase is over.

A barrier is one word of 64 bits: arrivals that its phase still waits for, arrivals of every phase, and the number of
phases that are over, by its last bit. Bytes that a TMA copy announces (`expect_tx`) are not built.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from moeparity.ptx.formats import Array
from moeparity.ptx.instructions.atomics import one_by_one
from moeparity.ptx.instructions.memory import space_of
from moeparity.ptx.spaces import view
from moeparity.ptx.table import Opcode, Operation, declare
from moeparity.ptx.threads import Lanes

_WIDTH = np.uint64(20)
_COUNT = np.uint64((1 << 20) - 1)
_PHASE = np.uint64(1 << 40)
_NONE, _SINGLE = np.uint64(0), np.uint64(1)
_KINDS = ("init", "inval", "arrive", "test_wait", "try_wait")
_SCOPES = "shared shared::cta parity acquire release relaxed cta"


@declare("mbarrier", modifiers=f"{' '.join(_KINDS)} {_SCOPES}")
def _(opcode: Opcode) -> Operation:
    kind, operands = opcode.one_of(_KINDS), len(opcode.statement.operands)
    if kind == "init":
        return _changed(opcode, ("u32",), lambda _, count: _begun(count))
    if kind == "inval":
        return _changed(opcode, (), np.zeros_like)
    if kind == "arrive":
        if operands != ARRIVING:
            raise opcode.unknown("a thread arrives once")
        return arrival(opcode, ("b64",))
    if not opcode.has("parity") or operands != ASKING:
        raise opcode.unknown("a phase is named by its parity, without a limit of time")
    return Operation(
        results=("pred",), sources=("address", "u32"), compute=_is_over(space_of(opcode)), lanes=True, memory=True
    )


ARRIVING, ASKING = 2, 3
"""Operands of an arrival, and of a question."""


def arrival(opcode: Opcode, results: tuple[str, ...]) -> Operation:
    """A thread's arrival; the word as it was is the token that it may be given."""
    return _changed(opcode, (), _arrived, results)


def _changed(
    opcode: Opcode, sources: tuple[str, ...], renew: Callable[..., Array], results: tuple[str, ...] = ()
) -> Operation:
    space = space_of(opcode) or "shared"

    def compute(lanes: Lanes, address: Array, *values: Array) -> Array:
        shape = lanes.index.shape
        words = view(lanes.machine.memory.octets, np.dtype(np.uint64))
        where = np.broadcast_to(lanes.machine.memory.positions(space, address, lanes, 8) // 8, shape)
        operands = [np.broadcast_to(value, shape) for value in values]
        return one_by_one(words, where, operands, lanes, lambda old, values, _: renew(old, *values))

    return Operation(results=results, sources=("address", *sources), compute=compute, lanes=True, memory=True)


def _begun(count: Array) -> Array:
    arrivals = count.astype(np.uint64) & _COUNT
    return arrivals << _WIDTH | arrivals


def _arrived(word: Array) -> Array:
    """With the last arrival a phase is over, and the next one waits for as many."""
    pending = (word & _COUNT) - _SINGLE
    over = (word ^ _PHASE) & ~_COUNT | word >> _WIDTH & _COUNT
    return np.where(pending == _NONE, over, word & ~_COUNT | pending)


def _is_over(space: str) -> Callable[..., Array]:
    """Whether the phase of that parity, the current one or the one before, is over."""

    def compute(lanes: Lanes, address: Array, parity: Array) -> Array:
        words = view(lanes.machine.memory.octets, np.dtype(np.uint64))
        word = words[lanes.machine.memory.positions(space or "shared", address, lanes, 8) // 8]
        return ((word & _PHASE) != _NONE) != (parity.astype(bool))

    return compute
