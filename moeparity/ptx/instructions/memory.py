"""Loads, stores, and hints that change no bits.

Memory is sequentially consistent: what an instruction writes is there for the next one, whichever thread runs it. So
cache operators, scopes and orders (`.nc`, `.L1::no_allocate`, `.relaxed.gpu`) change nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from moeparity.ptx.formats import Array, dtype_of
from moeparity.ptx.spaces import view
from moeparity.ptx.table import Opcode, Operation, Sync, declare
from moeparity.ptx.threads import Lanes

_SPACES = ("global", "shared", "local", "param", "const")
_HINTS = (
    "v2 v4 v8 nc ca cg cs cv lu wb wt relaxed acquire release weak volatile cta cluster gpu sys unified "
    "L1::no_allocate L1::evict_first L1::evict_last L1::evict_normal L1::evict_unchanged L2::64B L2::128B L2::256B "
    "L2::cache_hint shared::cta shared::cluster param::entry mmio"
)
_POLICY = "L2::cache_hint"
_TYPES = (*(f"{kind}{bits}" for kind in "bus" for bits in (8, 16, 32, 64)), "f32", "f64")


def space_of(opcode: Opcode) -> str:
    """The space an instruction names; empty for generic addresses."""
    spaces = [word.split("::")[0] for word in opcode.modifiers if word.split("::")[0] in _SPACES]
    return spaces[0] if spaces else ""


@declare("ld", modifiers=f"{' '.join(_SPACES)} {_HINTS}")
def _(opcode: Opcode) -> Operation:
    type_, space, count = opcode.type_of(_TYPES), space_of(opcode), opcode.vector
    dtype = dtype_of(type_)

    def compute(lanes: Lanes, address: Array, *_: Array) -> Any:
        first = lanes.machine.memory.positions(space, address, lanes, count * dtype.itemsize) // dtype.itemsize
        numbers = view(lanes.machine.memory.octets, dtype)
        parts = tuple(numbers[first + at] for at in range(count))
        return parts if count > 1 else parts[0]

    return Operation(
        results=(type_,) * count,
        sources=("address", *_policy(opcode)),
        compute=compute,
        lanes=True,
        memory=_shared(space),
    )


@declare("st", modifiers=f"{' '.join(_SPACES)} {_HINTS}")
def _(opcode: Opcode) -> Operation:
    type_, space, count = opcode.type_of(_TYPES), space_of(opcode), opcode.vector
    dtype = dtype_of(type_)

    def compute(lanes: Lanes, address: Array, *values: Array) -> None:
        where = lanes.machine.memory.positions(space, address, lanes, count * dtype.itemsize) // dtype.itemsize
        numbers, order = view(lanes.machine.memory.octets, dtype), lanes.order()
        where = np.broadcast_to(where, lanes.index.shape)[order]
        for at, value in enumerate(values[:count]):
            numbers[where + at] = np.broadcast_to(value, lanes.index.shape)[order]

    sources = ("address", *(type_,) * count, *_policy(opcode))
    return Operation(results=(), sources=sources, compute=compute, lanes=True, memory=_shared(space))


@declare("prefetch", "prefetchu", modifiers="global local L1 L2 L2::evict_last L2::evict_normal tensormap")
def _(opcode: Opcode) -> Operation:
    return nothing()


@declare("createpolicy", modifiers="fractional L2::evict_first L2::evict_last L2::evict_normal L2::evict_unchanged")
def _(opcode: Opcode) -> Operation:
    """A cache policy for what loads and stores name with `L2::cache_hint`, which changes no bits: 0."""
    fractions = ("f32",) * (len(opcode.statement.operands) - 1)
    return Operation(results=("b64",), sources=fractions, compute=lambda *_: np.zeros(1, np.uint64))


@declare("membar", modifiers="cta gl sys")
def _(opcode: Opcode) -> Operation:
    return nothing()


@declare("fence", modifiers="sc acq_rel acquire release cta cluster gpu sys proxy async shared::cta")
def _(opcode: Opcode) -> Operation:
    return nothing()


@declare("griddepcontrol", modifiers="wait launch_dependents")
def _(opcode: Opcode) -> Operation:
    """Launches follow each other here."""
    return nothing()


@declare("nanosleep", "pmevent")
def _(opcode: Opcode) -> Operation:
    return nothing()


def nothing(sync: Sync = Sync.NOBODY) -> Operation:
    """An instruction that changes no bits."""
    return Operation(results=(), sources=(), compute=lambda: None, sync=sync)


def _policy(opcode: Opcode) -> tuple[str, ...]:
    """The operand that a cache hint adds."""
    return ("b64",) if opcode.has(_POLICY) else ()


def _shared(space: str) -> bool:
    """Whether other threads see it."""
    return space not in {"param", "local", "const"}
