"""Barriers of a block, of a warp and of a cluster. A thread that has ended is not waited for."""

from __future__ import annotations

import numpy as np

from moeparity.ptx.formats import Array
from moeparity.ptx.table import Opcode, Operation, Sync, declare
from moeparity.ptx.threads import Lanes


@declare(
    "bar", "barrier", modifiers="sync arrive red popc and or cta aligned warp cluster wait release acquire relaxed"
)
def _(opcode: Opcode) -> Operation:
    if opcode.has("cluster"):
        return _of_cluster(opcode)
    if opcode.modifiers & {"wait", "release", "acquire", "relaxed"}:
        raise opcode.unknown("no such barrier")
    if opcode.has("warp"):
        return Operation(results=(), sources=("b32",), compute=_nothing, sync=Sync.WARP)
    kind = opcode.one_of(("sync", "arrive", "red"))
    count = len(opcode.statement.operands)
    if kind == "red":
        return _reduction(opcode, count)
    if opcode.types or opcode.modifiers & {"popc", "and", "or"}:
        raise opcode.unknown("no such barrier")
    if count not in {1, 2}:
        raise opcode.unknown("a barrier, and how many threads it waits for, were expected")

    def compute(lanes: Lanes, barrier: Array, threads: Array | None = None) -> None:
        lanes.machine.barriers.arrive(lanes.index, barrier, threads, waits=kind == "sync")

    return Operation(results=(), sources=("u32",) * count, compute=compute, lanes=True, sync=Sync.BLOCK)


def _of_cluster(opcode: Opcode) -> Operation:
    """`barrier.cluster`: all threads of a cluster arrive, and wait later."""
    kind = opcode.one_of(("arrive", "wait"))
    orders = {"release", "relaxed"} if kind == "arrive" else {"acquire"}
    if opcode.root != "barrier" or opcode.modifiers - {"cluster", kind, "aligned", *orders}:
        raise opcode.unknown("no such barrier")

    def compute(lanes: Lanes) -> None:
        barriers = lanes.machine.barriers
        (barriers.arrive_in_cluster if kind == "arrive" else barriers.wait_for_cluster)(lanes.index)

    return Operation(results=(), sources=(), compute=compute, lanes=True, sync=Sync.BLOCK)


def _nothing(mask: Array) -> None:
    """Having waited is all."""


def _reduction(opcode: Opcode, count: int) -> Operation:
    """`bar.red`: the block's predicates counted, or joined; the result is written when the barrier opens."""
    word = opcode.one_of(("popc", "and", "or"))
    result = opcode.type_of(("u32",) if word == "popc" else ("pred",))
    if count not in {3, 4}:
        raise opcode.unknown("a result, a barrier, how many threads it waits for, and a predicate were expected")

    def compute(lanes: Lanes, barrier: Array, *rest: Array) -> None:
        threads = rest[0] if len(rest) == 2 else None
        lanes.machine.barriers.arrive(lanes.index, barrier, threads, waits=True, vote=rest[-1])

    def counted(lanes: Lanes) -> Array:
        true, voters = lanes.machine.barriers.votes(lanes.index)
        return {"popc": true.astype(np.uint32), "and": true == voters, "or": true > 0}[word]

    return Operation(
        results=(result,),
        sources=("u32",) * (count - 2) + ("pred",),
        compute=compute,
        lanes=True,
        sync=Sync.BLOCK,
        late=counted,
    )
