"""Which module of a program shows which value of a graph: shipped maps, a user's own, and the one of a trace."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from moeparity.documents.checked import read, shipped
from moeparity.errors import SpecError, TraceError, Where, did_you_mean, listed
from moeparity.evidence.trace.records import Call
from moeparity.plan.address import role
from moeparity.plan.graph import Graph, Node
from moeparity.plan.spec import reader
from moeparity.plan.spec.module_map import MapFile, Shown
from moeparity.plan.token_shapes import token_shapes

LAYER = "[*]"
_INDEX = re.compile(r"(?<=\.)\d+(?=\.|$)")
"""Of a layer, in a module's path."""


@dataclass(frozen=True, slots=True)
class ValuePlace:
    """Where a program shows a value: the module's path, which side of the module, and the slots in which the value may
    lie.

    `op`: the op inside the module, if it is that one's argument or result. `columns`: if the value stands beside others
    in the last axis, its first column and the one behind its last; `beside`: how many numbers a token has of all these
    values. `repeated`: how often the node has it, side by side.
    `width`: how many numbers of the value a token has there; None: any. `of_requests`: whether a server has it of each
    request's last token alone.
    """

    module: str
    side: Literal["input", "output"]
    slots: tuple[str, ...]
    columns: tuple[int, int] | None = None
    beside: int | None = None
    repeated: int = 1
    width: int | None = None
    op: str | None = None
    of_requests: bool = False

    def value_of(self, call: Call) -> int | None:
        """The id of the value that a call has here."""
        ids = call.inputs if self.side == "input" else call.outputs
        return next((ids[slot] for slot in self.slots if slot in ids), None)

    def values_of(self, calls: Iterable[Call]) -> Iterator[int]:
        """The ids of all values that calls of the module have here, those of lists and dicts behind the others."""
        for call in calls:
            if call.level == "module" and call.path == self.module:
                ids = call.inputs if self.side == "input" else call.outputs
                yield from (ids[slot] for slot in self.slots if slot in ids)
                items = tuple(f"{slot}." for slot in self.slots)
                yield from (number for slot, number in ids.items() if slot.startswith(items))

    def __str__(self) -> str:
        inside = "" if self.op is None else f"{self.op} in "
        return f"{self.side} {self.slots[0]} of {inside}{self.module or 'the model'}"


@dataclass(frozen=True)
class ModuleMap:
    """A map as its file has it; `where` is that file."""

    file: MapFile
    where: Where

    @cached_property
    def tokens(self) -> tuple[ValuePlace, ...]:
        """Where the ids of the tokens go in: of a model at one of these."""
        shown = self.file.tokens
        return tuple(map(_plain, shown if isinstance(shown, list) else [shown]))

    @cached_property
    def mask(self) -> tuple[ValuePlace, ...]:
        """Where it is said which tokens are no padding, those of a cache included."""
        return tuple(map(_plain, self.file.mask))

    @cached_property
    def positions(self) -> tuple[ValuePlace, ...]:
        """Where the positions of the tokens go in."""
        return tuple(map(_plain, self.file.positions))

    def shows(self, calls: Iterable[Call]) -> bool:
        """Whether these calls of modules are of this map's program."""
        call_names = {(call.path, call.name) for call in calls}
        return any(
            any(module.module in (None, path) and module.name in (None, name) for path, name in call_names)
            for module in self.file.shown_by
        )

    def on(self, graph: Graph) -> Mapping[str, tuple[ValuePlace, ...]]:
        """By value of a graph, where it may be shown. Raises SpecError for columns of values without a known width."""
        shapes = token_shapes(graph)
        shown_at = {
            value: tuple(self._place(shown, value, node, graph) for shown in self._shown(value, node, graph))
            for node in graph.nodes
            for value in node.values
        }
        return {
            value: tuple(replace(place, width=shapes[value].numbers // place.repeated) for place in places)
            for value, places in shown_at.items()
            if places
        }

    def every(self, model_type: str, layers: int) -> Iterator[tuple[str, str, str]]:
        """Every module that shows some value, for models of this type with so many layers: its path, which side of it,
        and the value.
        """
        for value in self.file.values:
            for module in (rule for rule in self._rules(value, model_type) if rule.op is None):
                for layer in range(layers if LAYER in value else 1):
                    yield _path(module.module, layer), _side(module), value.replace(LAYER, f"[{layer}]")

    def names(self, calls: Iterable[Call]) -> Mapping[int, str]:
        """By value of a trace, the graph's value that it is, of calls in forwards. Without a checkpoint nothing tells
        the model's type: every rule counts, and a layer with a router has no dense block.
        """
        rules: dict[tuple[str, str | None], list[tuple[str, ValuePlace]]] = {}
        for name in self.file.values:
            for rule in self._rules(name, None):
                key = rule.module.replace("{next}", "{i}"), rule.op
                rules.setdefault(key, []).append((name, ValuePlace(rule.module, _side(rule), rule.slots)))
        shown: dict[int, list[str]] = {}
        for call in calls:
            layer = _INDEX.search(call.path)
            path = call.path if layer is None else f"{call.path[: layer.start()]}{{i}}{call.path[layer.end() :]}"
            for name, place in rules.get((path, call.name if call.level == "op" else None), ()):
                number = place.value_of(call)
                if number is not None:
                    index = 0 if layer is None else int(layer[0]) - ("{next}" in place.module)
                    shown.setdefault(number, []).append(name.replace(LAYER, f"[{index}]"))
        routed = {name.partition(".")[0] for names in shown.values() for name in names if name.endswith(".moe.gate")}
        return {number: name for number, names in shown.items() for name in reversed(names) if _is_of(name, routed)}

    def refuse_unknown(self, graph: Graph) -> None:
        """Raises SpecError for a value that no node of a graph has; a shipped map is of all models."""
        if self.where.path in shipped("maps").values():
            return
        values = dict.fromkeys(role(value) for node in graph.nodes for value in node.values)
        for name in self.file.values:
            if name not in values:
                raise SpecError(
                    f"{Where(self.where.path, self.file.line_of('values'))}: values names {name!r}, which no node of "
                    f"{graph.model_type} makes.{did_you_mean(name, values)} `moeparity show plan` lists nodes."
                )

    def _shown(self, value: str, node: Node, graph: Graph) -> list[Shown]:
        last = node.layer == graph.layers - 1
        return [rule for rule in self._rules(role(value), graph.model_type) if last or rule.layers == "all"]

    def _rules(self, value: str, model_type: str | None) -> list[Shown]:
        """What the file says of a value, by its name without the layer's number, for models of a type (None: any)."""
        shown = self.file.values.get(value, [])
        rules = shown if isinstance(shown, list) else [shown]
        return [
            rule for rule in rules if None in (rule.model_type, model_type) or model_type in (rule.model_type or ())
        ]

    def _place(self, shown: Shown, value: str, node: Node, graph: Graph) -> ValuePlace:
        layer = 0 if node.layer is None else node.layer
        place = ValuePlace(
            _path(shown.module, layer),
            _side(shown),
            shown.slots,
            repeated=shown.repeated,
            op=shown.op,
            of_requests=shown.rows == "requests",
        )
        return self._in_columns(place, shown, value, graph) if shown.columns else place

    def _in_columns(self, place: ValuePlace, shown: Shown, value: str, graph: Graph) -> ValuePlace:
        """The place with the columns that are the value's own. Values that this graph has not take none."""
        layer = value[: value.index("]") + 1] if "[" in value else ""
        widths = {node.name: _width(node) for node in graph.nodes}
        columns, beside = None, 0
        for name in shown.columns:
            width_name = name.replace(f"layers{LAYER}", layer)
            width = widths.get(width_name, 0)
            if width is None:
                raise SpecError(f"{self.where}: columns names {name!r}, whose width no weight tells.")
            if width_name == value:
                columns = (beside, beside + width)
            beside += width
        if columns is None:
            raise SpecError(f"{self.where}: columns of {role(value)} leaves {role(value)} itself out. Add it.")
        return replace(place, columns=columns, beside=beside)


def load_map(name: str, where: Where) -> ModuleMap:
    """A shipped map by name, or a file relative to the one that names it. Raises SpecError."""
    if (path := reader.own_file(name, where, "map")) is not None:
        return ModuleMap(read(path, MapFile), Where(path))
    maps = shipped("maps")
    if name not in maps:
        raise SpecError(
            f"{where}: map {name!r} is not shipped; expected {listed(maps)}, or a path with `/` or `.yaml` to a file "
            f"of your own.{did_you_mean(name, maps)}"
        )
    return ModuleMap(read(maps[name], MapFile), Where(maps[name]))


def map_of(calls: Iterable[Call], where: Where) -> ModuleMap:
    """The shipped map of the program that made these calls of modules. Raises TraceError if no map fits, or if several
    do.

    `where` is the trace.
    """
    modules = list({(call.path, call.name): call for call in calls}.values())
    maps = [load_map(name, where) for name in shipped("maps")]
    fitting = [shipped for shipped in maps if shipped.shows(modules)]
    if len(fitting) == 1:
        return fitting[0]
    if not modules:
        raise TraceError(f"{where}: no call of a module. Capture with module paths: they say which value is which.")
    names = listed(dict.fromkeys(shipped.file.program for shipped in fitting or maps))
    fault = f"its modules fit the maps of {names}" if fitting else f"its modules are none that the maps of {names} know"
    raise TraceError(f"{where}: {fault}. Name one with `map:`, or a YAML file of your own (docs/traces.md).")


def _is_of(value: str, routed: Collection[str]) -> bool:
    """Whether a layer has this value: one with a router has no dense block, and the other way round."""
    layer, _, inside = value.partition(".")
    return not inside.startswith("mlp." if layer in routed else "moe.")


def _plain(shown: Shown) -> ValuePlace:
    return ValuePlace(shown.module, _side(shown), shown.slots)


def _path(module: str, layer: int) -> str:
    return module.replace("{i}", str(layer)).replace("{next}", str(layer + 1))


def _side(shown: Shown) -> Literal["input", "output"]:
    return "output" if shown.input is None else "input"


def _width(node: Node) -> int | None:
    """How many columns a node's value has, as the weight of its GEMM tells."""
    weight = node.weights.get("weight")
    return None if weight is None or not node.op.role.gemm else weight.shape[0]
