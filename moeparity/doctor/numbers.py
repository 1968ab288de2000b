"""Faults that leave a number open. Numbers of a grid are tried beside the other hypotheses; a number that leads is then
solved for.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from moeparity.doctor.hypotheses import Hypothesis, Number, Plant, groups, nodes_of
from moeparity.doctor.readings import Alone, Reading
from moeparity.ops.attribute import Value
from moeparity.plan.address import role
from moeparity.plan.faults.fault import Fault, planted, written
from moeparity.plan.faults.plant import candidates, start
from moeparity.plan.faults.reader import shipped_faults
from moeparity.plan.graph import Graph, Node
from moeparity.plan.spec.fault_schema import FreeValue

FACTORS = (0.7, 1.4)
"""A number is tried at its correct value times each of these."""
_SHORTEST = 4
"""No window is shorter than this many tokens."""
_BASES = (1e3, 3e3, 1e4, 3e4, 1e5, 2e5, 5e5, 1e6, 3e6, 1e7, 3e7)
_EPS = (0.0, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
GRIDS = {"rope-base": _BASES, "norm-eps": _EPS}
"""Grids for numbers that may be off by orders of magnitude."""
LEFT_OUT = {
    "softmax-scale-of-another-width": "the fault softmax-scale covers it",
    "rope-offset": "rotations are relative, so it changes rounding alone",
}
"""Faults with an open number that are not tried, and why."""
_WINDOW = "window"
_CAPACITY = "capacity-drop"
_FEWER_EXPERTS = "experts-per-token"
_CAPACITY_FACTORS = (1.0, 1.1, 1.2, 1.25, 1.5, 2.0)
_SPARE = 4
"""Capacities of up to this many times the tokens that an expert gets on average are tried."""
_OF_PADDING = "mask-shifted"
_BY_ROLE = "weights-scaled"
"""The fault that is planted at the nodes of one role at a time, such as all layers' q_proj."""

_BY_LAYER = ("scales-scaled", "scales-of-another-size")
"""The faults that are planted in one layer at a time too: what is too large in one may look like too little before it,
so that the number that leads in all layers is the wrong one for each; and wrong scales of one layer need not look like
those of all.
"""
_ROUNDED, _LEFT = "weights-in-fp8", "what is to stay as it is"
"""The fault that, where a checkpoint is quantised, is tried at the weights that it leaves as they are: a module that a
side's list of these lacks.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Hypotheses that differ in one number: a fault with one value open, at the same nodes.

    free: the name of the open value. nominal: its correct value; None if that is no number. grid: the values to try
    first. of: the nodes, in words; "" for all nodes at which the fault is possible. reading: the steps in which the
    side computes the tokens, if that matters. set_values: the fault's values that are not open.
    """

    fault: Fault
    nodes: tuple[str, ...]
    free: str
    nominal: float | None
    grid: tuple[float | int, ...]
    of: str = ""
    reading: Reading | None = None
    set_values: tuple[tuple[str, Value], ...] = ()

    @property
    def name(self) -> str:
        """The name in reports, without the number."""
        return f"{self.fault.name} of {self.of}" if self.of else self.fault.name

    @property
    def is_solved(self) -> bool:
        """Whether the number can be solved for, since any number is possible and not only those of the grid."""
        return self.fault.free[self.free].type == "number"

    def at(self, value: float) -> Hypothesis:
        """The hypothesis with a number."""
        number: Value = value if self.is_solved else int(value)
        plant = Plant(node="", fault=self.fault, values=(*self.set_values, (self.free, number)))
        words = planted(self.fault, dict(plant.values)).in_words
        return Hypothesis(
            name=f"{self.fault.name}({self.free}={_text(number)})" + (f" of {self.of}" if self.of else ""),
            says=f"computes as if {words}" + (f", at {self.of}" if self.of else ""),
            change=f"look for {self.fault.name} (docs/faults.md) in this side's model code and configuration",
            plants=tuple(replace(plant, node=node) for node in self.nodes),
            number=Number(family=self.name, name=self.free, value=float(value)),
            plainness=2 if self.of else 1,
            reading=self.reading,
        )

    def members(self) -> Iterator[Hypothesis]:
        """The hypotheses of the grid."""
        return map(self.at, self.grid)

    def parts(self, graph: Graph) -> Iterator[Family]:
        """The family at the nodes of one layer, at those of one kind, and at each node alone."""
        for says, group in groups(nodes_of(graph, self.nodes)):
            yield replace(self, nodes=tuple(node.name for node in group), of=says)


def _text(number: Value) -> str:
    return f"{number:.4g}" if isinstance(number, float) and number != round(number, 12) else written(number)


def families(
    graph: Graph, length: int, *, padded: bool, unquantised: Collection[str] | None = None
) -> Iterator[Family]:
    """Each fault with one open number, for a model and sequences of at most `length` tokens, some of them `padded`.
    unquantised: the nodes of a quantised checkpoint whose weights it leaves as they are; None: it is not quantised.
    """
    width = next((int(node.params["dim"]) for node in graph.nodes if "dim" in node.params), 0)
    groups: dict[tuple[str, str], list[Node]] = {}
    for node in graph.nodes:
        for fault in candidates(graph, node):
            if fault.name in LEFT_OUT or (fault.name == _OF_PADDING and not padded):
                continue
            if _open_number(fault) is not None:
                for of in _places(fault.name, node, unquantised):
                    groups.setdefault((fault.name, of), []).append(node)
    if any(nodes == groups.get((_ROUNDED, _LEFT)) for (_, of), nodes in groups.items() if of != _LEFT):
        del groups[_ROUNDED, _LEFT]
    for (name, of), nodes in groups.items():
        fault = shipped_faults()[name]
        free = _open_number(fault)
        assert free is not None
        nominal = start(nodes[0], fault.free[free]) if fault.free[free].type == "number" else None
        routed = tuple(_of_router(name, nodes[0], length))
        grid: tuple[float | int, ...] = routed or tuple(_grid(fault, fault.free[free], nominal, length, width))
        if grid:
            names = tuple(node.name for node in nodes)
            reading = Alone() if name == _CAPACITY else None
            yield Family(fault=fault, nodes=names, free=free, nominal=nominal, grid=grid, of=of, reading=reading)


def _places(fault: str, node: Node, unquantised: Collection[str] | None) -> Iterator[str]:
    """The groups of nodes at which a fault is tried with a number, of those that a node is one of."""
    if fault == _ROUNDED and unquantised is not None:
        if node.name in unquantised:
            yield from (_LEFT, f"layer {node.layer}, {_LEFT}")
        return
    yield role(node.name) if fault == _BY_ROLE else ""
    if fault in _BY_LAYER and node.layer is not None:
        yield f"layer {node.layer}"


def _open_number(fault: Fault) -> str | None:
    """The one value that a fault leaves open, if it is a number."""
    left_open = [name for name, free in fault.free.items() if free.default is None]
    is_number = len(left_open) == 1 and fault.free[left_open[0]].type in {"number", "whole", "width"}
    return left_open[0] if is_number else None


def _grid(fault: Fault, free: FreeValue, nominal: float | None, length: int, width: int) -> Iterator[float | int]:
    """The values to try first, without that which the node has. width: of the columns that are rotated."""
    tried = [value for value in free.tried if not isinstance(value, str)]
    if nominal is not None:
        factors = tuple(nominal * factor for factor in FACTORS)
        values = GRIDS.get(fault.name) or (factors if fault.name == _BY_ROLE else (*factors, *tried))
        yield from sorted({float(value) for value in values if not math.isclose(value, nominal)})
    elif free.type == "width":
        yield from (width * quarters // 4 for quarters in (1, 2, 3))
    elif fault.name == _WINDOW:
        yield from (int(value) for value in tried if _SHORTEST <= value < length)
    else:
        yield from map(int, tried)


def _of_router(fault: str, node: Node, length: int) -> Iterator[int]:
    """The values to try of a fault that counts a router's tokens or experts."""
    if fault == _FEWER_EXPERTS:
        yield from range(1, node.params["top_k"])
    elif fault == _CAPACITY:
        average = length * node.params["top_k"] / node.params["experts"]
        tried = [int(value) for value in shipped_faults()[fault].free["capacity"].tried]
        nearest = [math.ceil(average * factor) for factor in _CAPACITY_FACTORS]
        yield from sorted({value for value in (*tried, *nearest) if value < min(length, _SPARE * average)})
