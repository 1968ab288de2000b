"""Shuffles, votes, matches and reductions of a warp. They wait for every thread of their mask that still runs.

What a shuffle reads from a thread outside its mask, or from one that has ended, is undefined. Here all bits of such a
value are set, which is a NaN in every float, so that a use of it shows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from moeparity.ptx.formats import Array, dtype_of
from moeparity.ptx.special import WARP
from moeparity.ptx.table import Opcode, Operation, Sync, declare
from moeparity.ptx.threads import Lanes

_REDUCTIONS: dict[str, Any] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}  # fmt: skip


@declare("shfl", modifiers="sync up down bfly idx")
def _(opcode: Opcode) -> Operation:
    opcode.type_of(("b32",))
    if not opcode.has("sync"):
        raise opcode.unknown("shuffles without `.sync` are not of this architecture")
    mode = opcode.one_of(("up", "down", "bfly", "idx"))
    pair = opcode.has_group

    def compute(lanes: Lanes, value: Array, b: Array, c: Array, mask: Array) -> Any:
        lane = lanes.index % WARP
        source, valid = _source(mode, lane, b.astype(np.int64), c.astype(np.int64))
        everybody = np.full(lanes.machine.lanes, 0xFFFFFFFF, np.uint32)
        everybody[lanes.index] = value
        shuffled = everybody[lanes.index - lane + source]
        is_in_mask = ((np.broadcast_to(mask, lane.shape).astype(np.int64) >> source) & 1) != 0
        shuffled = np.where(is_in_mask, shuffled, np.uint32(0xFFFFFFFF))
        return (shuffled, valid) if pair else shuffled

    results = ("b32", "pred") if pair else ("b32",)
    return Operation(results=results, sources=("b32",) * 4, compute=compute, lanes=True, sync=Sync.WARP)


def _source(mode: str, lane: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """The lane read from, and whether it was in range; PTX ISA, `shfl.sync`."""
    amount, clamp, segment = b & 31, c & 31, (c >> 8) & 31
    low = lane & segment
    high = low | (clamp & ~segment)
    source = {
        "up": lambda: lane - amount,
        "down": lambda: lane + amount,
        "bfly": lambda: lane ^ amount,
        "idx": lambda: low | (amount & ~segment),
    }[mode]()
    valid = source >= high if mode == "up" else source <= high
    return np.where(valid, source, lane), valid


@declare("vote", modifiers="sync all any uni ballot")
def _(opcode: Opcode) -> Operation:
    mode = opcode.one_of(("all", "any", "uni", "ballot"))
    result = opcode.type_of(("b32",)) if mode == "ballot" else opcode.type_of(("pred",))
    if not opcode.has("sync"):
        raise opcode.unknown("votes without `.sync` are not of this architecture")

    def compute(lanes: Lanes, predicate: Array, mask: Array) -> Array:
        true = _ballot(lanes, predicate) & mask
        voters = _ballot(lanes, np.ones(1, bool)) & mask
        if mode == "ballot":
            return true
        if mode == "any":
            return true != 0
        return true == voters if mode == "all" else (true == voters) | (true == 0)

    return Operation(results=(result,), sources=("pred", "b32"), compute=compute, lanes=True, sync=Sync.WARP)


@declare("match", modifiers="sync any all")
def _(opcode: Opcode) -> Operation:
    """The lanes of the mask with the same value; of `all` 0 where they are not all alike."""
    type_ = opcode.type_of(("b32", "b64"))
    every = opcode.one_of(("any", "all")) == "all"
    pair = opcode.has_group

    def compute(lanes: Lanes, value: Array, mask: Array) -> Any:
        present, values = _spread(lanes, value, 0)
        alike = (values[:, :, None] == values[:, None, :]) & present[:, None, :]
        same = _bits(alike).reshape(-1)[lanes.index] & mask
        if not every:
            return same
        complete = same == (_ballot(lanes, np.ones(1, bool)) & mask)
        matched = np.where(complete, same, np.uint32(0))
        return (matched, complete) if pair else matched

    results = ("b32", "pred") if pair else ("b32",)
    return Operation(results=results, sources=(type_, "b32"), compute=compute, lanes=True, sync=Sync.WARP)


@declare("redux", modifiers="sync add min max and or xor")
def _(opcode: Opcode) -> Operation:
    """Over the lanes of the mask; integers, so that no order shows."""
    type_ = opcode.type_of(("u32", "s32", "b32"))
    word = opcode.one_of(tuple(_REDUCTIONS))
    dtype = dtype_of(type_)
    neutral = {
        "min": np.iinfo(dtype).max, "max": np.iinfo(dtype).min, "and": np.array(-1).astype(dtype)[()],
    }.get(word, 0)  # fmt: skip

    def compute(lanes: Lanes, value: Array, mask: Array) -> Array:
        present, values = _spread(lanes, value, 0)
        lane = lanes.index % WARP
        masks = np.zeros(lanes.machine.lanes, np.uint32)
        masks[lanes.index] = mask
        chosen = (masks.reshape(-1, WARP)[:, :, None] >> np.arange(WARP, dtype=np.uint32)) & np.uint32(1) != 0
        table = np.where(chosen & present[:, None, :], values[:, None, :], dtype.type(neutral))
        reduced: Array = _REDUCTIONS[word].reduce(table, axis=2, dtype=dtype)
        return reduced[lanes.index // WARP, lane]

    return Operation(results=(type_,), sources=(type_, "b32"), compute=compute, lanes=True, sync=Sync.WARP)


@declare("activemask")
def _(opcode: Opcode) -> Operation:
    opcode.type_of(("b32",))
    return Operation(
        results=("b32",), sources=(), compute=lambda lanes: _ballot(lanes, np.ones(1, bool)), lanes=True, memory=True
    )


@declare("elect", modifiers="sync")
def _(opcode: Opcode) -> Operation:
    """The lowest lane of the mask is elected (the ISA leaves open which)."""

    def compute(lanes: Lanes, mask: Array) -> Any:
        voters = _ballot(lanes, np.ones(1, bool)) & mask
        leader = np.log2((voters & (~voters + np.uint32(1))).astype(np.float64)).astype(np.uint32)
        return leader, leader == (lanes.index % WARP).astype(np.uint32)

    return Operation(results=("b32", "pred"), sources=("b32",), compute=compute, lanes=True, sync=Sync.WARP)


def _spread(lanes: Lanes, value: Array, fill: int) -> tuple[Array, Array]:
    """[warps, 32]: which threads are here, and their values."""
    present = np.zeros(lanes.machine.lanes, bool)
    present[lanes.index] = True
    values = np.full(lanes.machine.lanes, fill, value.dtype)
    values[lanes.index] = value
    return present.reshape(-1, WARP), values.reshape(-1, WARP)


def _bits(true: Array) -> Array:
    """[..., 32] bools as one number."""
    packed = np.packbits(true, axis=-1, bitorder="little")
    return np.ascontiguousarray(packed).view(np.uint32)[..., 0]


def _ballot(lanes: Lanes, true: Array) -> Array:
    """For each thread the lanes of its warp for which it is true."""
    everybody = np.zeros(lanes.machine.lanes, bool)
    everybody[lanes.index] = true
    return _bits(everybody.reshape(-1, WARP))[lanes.index // WARP]
