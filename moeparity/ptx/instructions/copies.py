"""Asynchronous copies into shared memory, which are done at once: so barriers hear of them at once, too."""

from __future__ import annotations

import numpy as np

from moeparity.ptx.formats import Array
from moeparity.ptx.instructions.asynchronous_barriers import arrival
from moeparity.ptx.instructions.memory import nothing
from moeparity.ptx.syntax import PtxError
from moeparity.ptx.table import Opcode, Operation, declare
from moeparity.ptx.threads import Lanes


@declare(
    "cp",
    modifiers="async ca cg shared shared::cta global commit_group wait_group wait_all L2::64B L2::128B L2::256B "
    "mbarrier arrive noinc",
)
def _(opcode: Opcode) -> Operation:
    if not opcode.has("async"):
        raise opcode.unknown("of `cp` only `cp.async` of up to 16 bytes is built")
    if opcode.has("mbarrier"):
        # Without `noinc` the phase waits for one arrival more, which is this one.
        return arrival(opcode, ()) if opcode.has("noinc") else nothing()
    if opcode.modifiers & {"commit_group", "wait_group", "wait_all"}:
        return nothing()
    space, sources = "shared", ("address", "address", "u32", "u32")[: len(opcode.statement.operands)]
    if len(sources) < 3:
        raise opcode.unknown("two addresses and a size were expected")

    def compute(lanes: Lanes, target: Array, source: Array, size: Array, filled: Array | None = None) -> None:
        count = int(size[0])
        if count not in {4, 8, 16}:
            raise PtxError(f"Line {opcode.statement.line}: `{opcode.text}` of {count} bytes; 4, 8 or 16 were expected.")
        memory = lanes.machine.memory
        to = np.broadcast_to(memory.positions(space, target, lanes, count), lanes.index.shape)
        sizes = np.broadcast_to(size if filled is None else filled, lanes.index.shape)
        for at in range(count):
            copied = np.flatnonzero(sizes > at)
            memory.octets[to + at] = 0
            if copied.size:
                of = memory.positions("global", np.broadcast_to(source, lanes.index.shape)[copied] + np.uint64(at),
                                      lanes.some(copied), 1)  # fmt: skip
                memory.octets[to[copied] + at] = memory.octets[of]

    return Operation(results=(), sources=sources, compute=compute, lanes=True, memory=True)
