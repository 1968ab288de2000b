"""Where edges are drawn if nodes stand one below the other: each value has a lane from its maker to its last reader."""

from __future__ import annotations

from collections.abc import Sequence

from moeparity.bisection.graph.data import GraphSegment
from moeparity.output.figures import Branch, Lanes, Trunk


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
    """The maker of a value; all values from other segments share one name."""
    return source if rows.get(source, row) < row else _ABOVE


def _inputs(segment: GraphSegment, row: int, rows: dict[str, int]) -> list[str]:
    return list(dict.fromkeys(_name(read.source, rows, row) for read in segment.nodes[row].reads))


def _last_readers(segment: GraphSegment, inputs: Sequence[Sequence[str]], goes_on: frozenset[str]) -> dict[str, int]:
    last = {name: row for row, names in enumerate(inputs) for name in names}
    return last | {node.role: len(segment.nodes) for node in segment.nodes if node.role in goes_on}


def _free(free_from: list[int], row: int) -> int:
    """The first lane that is free at this row."""
    for lane, until in enumerate(free_from):
        if until < row:
            return lane
    free_from.append(row)
    return len(free_from) - 1


def _take(free_from: list[int], row: int, until: int) -> int:
    lane = _free(free_from, row)
    free_from[lane] = until
    return lane
