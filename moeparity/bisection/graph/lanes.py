"""Where edges run when nodes stand below each other: each value has a lane, from its maker to its last reader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moeparity.bisection.graph.report import GraphSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class Trunk:
    """A value on its way: its lane, the row that makes it (-1: from above), the last row that reads it (the number of
    rows: it goes on below).
    """

    lane: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Where a node reads a value that runs in another lane; `unread` where no side does."""

    row: int
    source: int
    target: int
    unread: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """The lane of each row's node, the values' trunks, the branches off them, and how many lanes there are."""

    nodes: tuple[int, ...]
    trunks: tuple[Trunk, ...]
    branches: tuple[Branch, ...]
    count: int


def lanes(segment: GraphSegment, goes_on: frozenset[str]) -> Lanes:
    """The lanes of a segment's nodes; `goes_on` are the roles that a later segment or layer reads."""
    rows = {node.role: row for row, node in enumerate(segment.nodes)}
    inputs = [_inputs(segment, row, rows) for row in range(len(segment.nodes))]
    last = _last_readers(segment, inputs, goes_on)
    lane_of: dict[str, int] = {}
    free_from: list[int] = []
    for source in dict.fromkeys(name for names in inputs for name in names if name not in rows):
        lane_of[source] = _take(free_from, -1, last[source])
    nodes, branches = [], []
    for row, node in enumerate(segment.nodes):
        ending = [lane_of[name] for name in inputs[row] if last[name] == row]
        for lane in ending:
            free_from[lane] = row
        lane = min(ending) if ending else _free(free_from, row)
        lane_of[node.role] = lane
        free_from[lane] = max(last.get(node.role, row), row)
        nodes.append(lane)
        unread = {_name(read.source, rows, row) for read in node.reads if read.unread}
        branches += [
            Branch(row=row, source=lane_of[name], target=lane, unread=name in unread)
            for name in inputs[row]
            if lane_of[name] != lane
        ]
    trunks = tuple(
        Trunk(lane=lane, start=rows.get(name, -1), end=last[name]) for name, lane in lane_of.items() if name in last
    )
    return Lanes(nodes=tuple(nodes), trunks=trunks, branches=tuple(branches), count=len(free_from))


_ABOVE = "from above"


def _name(source: str, rows: dict[str, int], row: int) -> str:
    """A value's maker; all that comes from other segments is one."""
    return source if rows.get(source, row) < row else _ABOVE


def _inputs(segment: GraphSegment, row: int, rows: dict[str, int]) -> list[str]:
    return list(dict.fromkeys(_name(read.source, rows, row) for read in segment.nodes[row].reads))


def _last_readers(segment: GraphSegment, inputs: Sequence[Sequence[str]], goes_on: frozenset[str]) -> dict[str, int]:
    last = {name: row for row, names in enumerate(inputs) for name in names}
    return last | {node.role: len(segment.nodes) for node in segment.nodes if node.role in goes_on}


def _free(free_from: list[int], row: int) -> int:
    """The first lane that nothing runs in at this row."""
    for lane, until in enumerate(free_from):
        if until < row:
            return lane
    free_from.append(row)
    return len(free_from) - 1


def _take(free_from: list[int], row: int, until: int) -> int:
    lane = _free(free_from, row)
    free_from[lane] = until
    return lane
