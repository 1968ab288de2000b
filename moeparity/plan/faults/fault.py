"""A fault, the values it leaves open, and a fault with these given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from moeparity.ops.attribute import Value
from moeparity.plan.rule import Rule
from moeparity.plan.spec.fault_schema import FaultFile, FreeValue

Values = Mapping[str, Value]
"""The free values of a fault, by name; an order of experts is their numbers, `1 2 3 0`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A named rewrite of a node, as its file states it. `free` are the values it leaves open, by name."""

    path: Path
    spec: FaultFile

    @property
    def name(self) -> str:
        """What it is called."""
        return self.spec.name

    @property
    def free(self) -> Mapping[str, FreeValue]:
        """The values that it leaves open."""
        return self.spec.values


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A fault with a value for each of its free values, as it is planted at a node. `str` is how plans and reports
    spell it.
    """

    fault: Fault
    values: tuple[tuple[str, Value], ...] = ()

    def __str__(self) -> str:
        free = self.fault.free
        values = ", ".join(f"{name}={written(value)}" for name, value in self.values if value != free[name].default)
        return f"{self.fault.name}({values})" if values else self.fault.name

    @property
    def takes_weights(self) -> bool:
        """Whether weights of another node, expert or checkpoint stand in place of the node's own."""
        edits = self.fault.spec.rewrite.weights.values()
        return any(
            {"of", "layer", "node", "checkpoint", "order", "from_expert", "exchanged"} & edit.model_fields_set
            for edit in edits
        )

    @property
    def in_words(self) -> str:
        """The fault as part of a sentence: its `says` with the values filled in."""
        return self.fault.spec.says.format_map({name: self._value_words(name, value) for name, value in self.values})

    def _value_words(self, name: str, value: Value) -> str:
        """A value in a sentence; where it narrows a default, the default comes first."""
        default = self.fault.free[name].default
        return written(value) if value == default or default is None else f"{default} {written(value)}"


def spelled(plants: Sequence[Planted]) -> str:
    """The text that settings and plans have for the faults at one node."""
    return " and ".join(map(str, plants))


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyNode:
    """The faults that a recipe plants at one node, in order, and the rule behind them."""

    node: str
    plants: tuple[Planted, ...]
    rule: Rule

    @property
    def text(self) -> str:
        """What the node's settings hold."""
        return spelled(self.plants)


def planted(fault: Fault, values: Values) -> Planted:
    """A fault with its free values. Raises ValueError, in words, where one is missing, unknown or of another type."""
    values = {name: free.default for name, free in fault.free.items() if free.default is not None} | dict(values)
    unknown = [name for name in values if name not in fault.free]
    missing = [name for name in fault.free if name not in values]
    if unknown:
        raise ValueError(f"{fault.name} has no value {unknown[0]!r}; it has {', '.join(fault.free) or 'none'}")
    if missing:
        raise ValueError(f"{fault.name} needs the value {missing[0]!r}: {fault.free[missing[0]].says}")
    misfit = next((name for name in fault.free if not _fits(fault.free[name], values[name])), None)
    if misfit is not None:
        expected, value = _TYPES[fault.free[misfit].type][1], values[misfit]
        raise ValueError(f"{fault.name}: {misfit} is {value!r}; expected {expected} ({fault.free[misfit].says})")
    return Planted(fault=fault, values=tuple((name, values[name]) for name in fault.free))


_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "number": ((int, float), "a number"),
    "whole": ((int,), "a whole number"),
    "width": ((int,), "a whole number"),
    "expert": ((int,), "the number of an expert"),
    "layer": ((int,), "the number of a layer"),
    "order": ((str,), "the experts' numbers in another order"),
    "checkpoint": ((str,), "the folder of a checkpoint"),
    "part": ((str,), "the names of weights, joined by `and`"),
}


def _fits(free: FreeValue, value: Value) -> bool:
    return isinstance(value, _TYPES[free.type][0]) and not isinstance(value, bool)


def written(value: Value) -> str:
    """A value as people read it: a number with as many digits as it needs."""
    return repr(value) if isinstance(value, float) else str(value)
