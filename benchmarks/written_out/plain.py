"""Plain recipes: one side written out for each trial, from both sides' YAML and the names that a report prints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.written_out.sides import Line, Place, Value, matches, settings, within
from moeparity.plan.graph import Graph

SIDES = ("reference", "candidate")


class CannotBeWrittenError(Exception):
    """No recipe has a word for it: a dtype is a whole side's, and a part of it no line."""


@dataclass(frozen=True)
class Printed:
    """A row of a report: its name, the row it is a part of, and its class."""

    name: str
    parent: str | None
    kind: str


class Writer:
    """Writes recipes for the trials of one recipe whose report prints these names."""

    def __init__(self, recipe: Mapping[str, Any], folder: Path, graph: Graph, printed: Sequence[Printed]) -> None:
        """Both sides are read from their files."""
        self.recipe, self.graph, self.printed = recipe, graph, {row.name: row for row in printed}
        self.values = {side: settings(recipe[side], folder, graph) for side in SIDES}
        dtypes = {self.dtype(side) for side in SIDES}
        self.differing = [place for place in self.values["reference"] if self._differ(place, dtypes)]
        self.op_of = {node.name: node.op.name for node in graph.nodes}

    def dtype(self, side: str) -> str:
        """The dtype a side runs in."""
        return str(self.recipe[side].get("dtype", "bf16"))

    def alone(self, names: Iterable[str]) -> dict[str, Any]:
        """The reference with these choices of the candidate."""
        return self._written("reference", "candidate", list(names))

    def restored(self, names: Iterable[str]) -> dict[str, Any]:
        """The candidate with these choices of the reference."""
        return self._written("candidate", "reference", list(names))

    def swapped(self, selector: str) -> dict[str, Any]:
        """The candidate with all that the reference has in a block."""
        inside = {node.name for node in within(selector, self.graph)}
        if self.dtype("reference") != self.dtype("candidate"):
            raise CannotBeWrittenError(selector)
        side = self._set("candidate", "reference", [place for place in self.differing if place[0] in inside])
        ours, theirs = (
            [i for i in self.recipe[s].get("impl", ()) if inside.intersection(i["nodes"])] for s in SIDES[::-1]
        )
        return side | {"impl": [impl for impl in side.get("impl", ()) if impl not in ours] + theirs}

    def _written(self, base: str, source: str, names: Sequence[str]) -> dict[str, Any]:
        side = self._set(base, source, [place for name in names for place in self._places(name)])
        for row in (self.printed[name] for name in names):
            if row.kind in ("dtype", "implementation") and row.parent is not None:
                raise CannotBeWrittenError(row.name)
            if row.name == "micro_batch":
                side["micro_batch"] = self.recipe[source]["micro_batch"]
            elif row.kind == "dtype":
                side["dtype"] = self.dtype(source)
            elif row.kind == "implementation":
                ours, theirs = (self._called(row.name, sides) for sides in (base, source))
                side["impl"] = [impl for impl in side.get("impl", ()) if impl not in ours] + theirs
        return side

    def _called(self, name: str, side: str) -> list[Mapping[str, Any]]:
        """The functions of a side that a report calls so."""
        return [impl for impl in self.recipe[side].get("impl", ()) if f"{', '.join(impl['nodes'])}:impl" == name]

    def _set(self, base: str, source: str, places: Sequence[Place]) -> dict[str, Any]:
        """A side whose own lines name single nodes: its own ones, and those that are moved or go along."""
        base_values, source_values = self.values[base], self.values[source]
        lines = {place: value.value for place, value in base_values.items() if self._is_own_line(base, value)}
        lines |= {
            place: source_values[place].value
            for place in self.differing
            if base_values[place].line is None and not self._is_printed(place)
        }
        lines |= {place: source_values[place].value for place in places}
        side = {key: value for key, value in self.recipe[base].items() if key != "set"}
        return side | {"set": {f"{node}:{name}": value for (node, name), value in lines.items()}}

    def _is_own_line(self, side: str, value: Value) -> bool:
        own_addresses = {address.rpartition(":")[0] for address in self.recipe[side].get("set", {})}
        return value.line is not None and value.line.label in own_addresses

    def _places(self, name: str) -> list[Place]:
        """What a printed name stands for."""
        row = self.printed[name]
        if row.parent is None:
            return [place for place in self.differing if name in self._names(place)]
        places = self._places(row.parent)
        part = name.removeprefix(f"{row.parent} / ")
        if part != name:
            op, _, attribute = part.partition(":")
            if attribute:
                return [p for p in places if (self.op_of[p[0]], self._attribute(p)) == (op, attribute)]
            families = {node.name: node.op.role.family or _block(node.name) for node in self.graph.nodes}
            return [place for place in places if families[place[0]] == part]
        # A slice holds a colon of its own.
        selectors, attribute = re.split(r":(?![^\[]*\])", name, maxsplit=1)
        nodes = {node.name for node in matches(selectors, self.graph)}
        of_nodes = [place for place in places if place[0] in nodes]
        _, arrow, readers = attribute.partition("->")
        if not arrow or readers in self.op_of.values():
            return of_nodes
        readers_there = {node.name for node in matches(readers, self.graph)}
        return [place for place in of_nodes if place[1].partition("->")[2] in readers_there]

    def _is_printed(self, place: Place) -> bool:
        return any(name in self.printed for name in self._names(place))

    def _names(self, place: Place) -> tuple[str, ...]:
        """What a report may call the choice at a place."""
        reference, candidate = (self.values[side][place] for side in SIDES)
        line = _naming(reference.line, candidate.line)
        if line.is_overlay:
            return (line.label,)
        name = f"{line.label}:{self._attribute(place)}"
        words = (self._words(value, side) for value, side in ((reference, "reference"), (candidate, "candidate")))
        long = f"{name} {' -> '.join(words)}"
        # Where values are needed to tell two apart, both names have them.
        return (name,) if name in self.printed else (long,)

    def _attribute(self, place: Place) -> str:
        site, arrow, consumer = place[1].partition("->")
        return f"{site}->{self.op_of[consumer]}" if arrow else site

    def _words(self, value: Value, side: str) -> str:
        return f"model ({self.dtype(side)})" if value.value == "model" else str(value.value)

    def _differ(self, place: Place, dtypes: set[str]) -> bool:
        values = [self.values[side][place].value for side in SIDES]
        if len(dtypes) == 1:
            values = [next(iter(dtypes)) if value == "model" else value for value in values]
        return bool(values[0] != values[1])


def _naming(reference: Line | None, candidate: Line | None) -> Line:
    """After whose line a choice is called: the candidate's, unless only the reference's is there or points closer."""
    if candidate is None or (reference is not None and reference.narrowness > candidate.narrowness):
        assert reference is not None
        return reference
    return candidate


def _block(name: str) -> str:
    parts = re.split(r"\.", name)
    return parts[1] if name.startswith("layers[") else name
