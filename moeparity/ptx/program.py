"""A kernel as it is run: its statements bound to registers, in segments that threads go through without waiting.

A segment ends at a branch or an exit, before a label, and around every instruction that waits for other threads. With a
seed it also ends before every access to memory that other threads see, so that any interleaving of these accesses can
be drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from moeparity.ptx.addresses import Layout
from moeparity.ptx.binding import Read, operands_of, reader, writer
from moeparity.ptx.formats import Array
from moeparity.ptx.syntax import Name, PtxError, Statement, innermost
from moeparity.ptx.table import Operation, Sync, UnknownInstruction, operation_of
from moeparity.ptx.threads import Active, Lanes, Machine, Segment, ThreadStep, chosen

_JUMPS = ("bra", "brx", "ret", "exit", "trap", "call")


@dataclass(frozen=True, slots=True)
class _Bound:
    """A statement made into steps: the second one is done after a barrier has opened."""

    statement: Statement
    operation: Operation | None
    steps: tuple[ThreadStep, ...] = ()
    mask: Read | None = None
    guard: Read | None = None


def program_of(
    layout: Layout, approximations: Mapping[str, Callable[..., Any]], target: str, *, interleaved: bool
) -> tuple[Segment, ...]:
    """The segments of a kernel. Raises UnknownInstruction, which names every instruction that is not known."""
    bound: list[_Bound] = []
    unknown: dict[str, str] = {}
    for statement in layout.kernel.statements:
        try:
            bound.append(_bind(statement, layout, approximations, target))
        except UnknownInstruction as error:
            unknown.setdefault(statement.opcode, str(error))
    if unknown:
        raise UnknownInstruction(f"Kernel {layout.kernel.name}: " + "\n".join(unknown.values()))
    starts = _starts(bound, layout, interleaved=interleaved)
    number = {start: at for at, start in enumerate(starts)}
    ends = [*starts[1:], len(bound)][: len(starts)]
    segments = [
        _segment(bound[start:end], layout, number, at) for at, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]
    return (*segments, Segment(line=0, steps=(), next=len(segments), ends=True))


def _bind(
    statement: Statement, layout: Layout, approximations: Mapping[str, Callable[..., Any]], target: str
) -> _Bound:
    guard = None if statement.guard is None else reader(statement.guard, "pred", statement, layout)
    if statement.opcode.split(".")[0] in _JUMPS:
        return _Bound(statement, None, guard=guard)
    operation = operation_of(statement, approximations, target)
    if not operation.results and not operation.sources and not operation.lanes:
        return _Bound(statement, operation, guard=guard)
    operands = operands_of(statement)
    if len(operands) != len(operation.results) + len(operation.sources):
        raise PtxError(f"Line {statement.line}: `{statement.opcode}` with {len(operands)} operands.")
    count = len(operation.results)
    writes = tuple(writer(x, t, statement, layout) for x, t in zip(operands[:count], operation.results, strict=True))
    read = [*operands[: operation.updated], *operands[count:]]
    types = (*operation.results[: operation.updated], *operation.sources)
    reads = tuple(reader(x, t, statement, layout) for x, t in zip(read, types, strict=True))
    mask = (_everybody if operation.whole else reads[-1]) if operation.sync is Sync.WARP else None
    step = _step(operation, reads, () if operation.late else writes)
    steps: tuple[ThreadStep, ...] = (_guarded(step, guard),)
    if operation.late:
        late = replace(operation, compute=operation.late)
        steps = (*steps, _guarded(_step(late, (), writes), guard))
    return _Bound(statement, operation, steps, mask, guard)


def _everybody(_machine: Machine, _active: Active) -> Array:
    return np.array([0xFFFFFFFF], np.uint32)


def _step(operation: Operation, reads: tuple[Read, ...], writes: tuple[Any, ...]) -> ThreadStep:
    compute, assumed = operation.compute, operation.assumed

    def step(machine: Machine, active: Active) -> None:
        values = [read(machine, active) for read in reads]
        result = compute(Lanes(machine, machine.index(active)), *values) if operation.lanes else compute(*values)
        if assumed is not None:
            machine.assumed.add(assumed)
        if len(writes) == 1:
            writes[0](machine, active, result)
        elif writes:
            # Copies: a result may be a view of a register that another result is written to.
            for write, value in zip(writes, [part.copy() for part in result], strict=True):
                write(machine, active, value)

    return step


def _guarded(step: ThreadStep, guard: Read | None) -> ThreadStep:
    if guard is None:
        return step

    def guarded(machine: Machine, active: Active) -> None:
        goes = guard(machine, active)
        if goes.all():
            step(machine, active)
        elif goes.any():
            step(machine, chosen(machine, active, goes))

    return guarded


def _starts(bound: list[_Bound], layout: Layout, *, interleaved: bool) -> list[int]:
    """Indices of the statements that segments begin with."""
    starts = {0, *layout.kernel.labels.values()} - {len(bound)}
    for at, each in enumerate(bound):
        waits = each.operation is not None and each.operation.sync is not Sync.NOBODY
        is_read = interleaved and each.operation is not None and each.operation.memory
        if waits or is_read:
            starts.add(at)
        if (each.operation is None or waits) and at + 1 < len(bound):
            starts.add(at + 1)
    return sorted(starts)


def _segment(bound: list[_Bound], layout: Layout, number: Mapping[int, int], at: int) -> Segment:
    last = bound[-1]
    inner = bound if last.operation is not None else bound[:-1]
    segment = Segment(
        line=bound[0].statement.line,
        steps=tuple(step for each in inner for step in each.steps[:1]),
        instructions=len(bound),
        next=at + 1,
        sync=bound[0].operation.sync if bound[0].operation is not None else Sync.NOBODY,
        mask=bound[0].mask,
        late=last.steps[1] if len(last.steps) > 1 else None,
        guard=bound[0].guard if len(bound) == 1 else None,
    )
    if last.operation is not None:
        return segment
    return _jump(segment, last, layout, number)


def _jump(segment: Segment, last: _Bound, layout: Layout, number: Mapping[int, int]) -> Segment:
    """The segment with the branch or exit that ends it."""
    statement = last.statement
    root = statement.opcode.split(".")[0]
    if root in {"trap", "call"}:
        instruction = f"`{statement.opcode}`" + (" (functions are not built)" if root == "call" else "")
        return replace(segment, fails=f"Line {statement.line}: a thread reached {instruction}", jump_guard=last.guard)
    if root in {"ret", "exit"}:
        return replace(segment, ends=True, jump_guard=last.guard)
    operands = statement.operands
    where = operands[-1] if len(operands) == (2 if root == "brx" else 1) else None
    if not isinstance(where, Name):
        raise PtxError(f"Line {statement.line}: `{statement.opcode}` does not say where to.")
    if root == "brx":
        table = innermost(layout.kernel.tables, statement.scope, where.text)
        if table is None:
            raise PtxError(f"Line {statement.line}: there is no table `{where.text}`.")
        return replace(
            segment,
            targets=tuple(_target(label, statement, layout, number) for label in table),
            selector=reader(operands[0], "u32", statement, layout),
            jump_guard=last.guard,
        )
    target = _target(where.text, statement, layout, number)
    return replace(segment, targets=(target,), jump_guard=last.guard)


def _target(label: str, statement: Statement, layout: Layout, number: Mapping[int, int]) -> int:
    index = innermost(layout.kernel.labels, statement.scope, label)
    if index is None:
        raise PtxError(f"Line {statement.line}: there is no label `{label}`.")
    return number.get(index, len(number))
