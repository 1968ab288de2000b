"""Both sides of a recipe read from its YAML files: every place with its value and the line that set it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from moeparity.plan.graph import Graph, Node

Place = tuple[str, str]
"""A node's name and an attribute, or `site->consumer`."""

SHIPPED = Path(__file__).parents[2] / "graphs" / "profiles"


@dataclass(frozen=True)
class Line:
    """What set a value: how a report calls it, and how closely it points at a node (op, overlay, selector)."""

    label: str
    narrowness: int

    @property
    def is_overlay(self) -> bool:
        """Whether reports call all it sets by its label alone."""
        return self.label.startswith(("fusion ", "placement "))


@dataclass(frozen=True)
class Value:
    """A value and the line that set it; None: nobody did."""

    value: Any
    line: Line | None


Settings = dict[Place, Value]


def read(path: Path) -> dict[str, Any]:
    """A YAML file, with numbers as YAML 1.2 spells them."""
    text = path.read_text("utf-8")
    return dict(yaml.load(text, _Loader))  # noqa: S506


class _Loader(yaml.SafeLoader):
    """PyYAML takes 1e-20 for a string."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d+)([eE][-+]?\d+)?$"), list("-+0123456789.")
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?\d+$"), list("-+0123456789"))


def settings(side: Mapping[str, Any], folder: Path, graph: Graph) -> Settings:
    """All places of a side: an op's default, then what profiles, placement and the recipe's own lines set."""
    result = {place: Value(value, None) for node in graph.nodes for place, value in _defaults(node, graph)}
    for profile in reversed(_chain(side["profile"], folder)):
        for entry in profile.get("fusions", ()):
            if graph.model_type in entry.get("model_type", [graph.model_type]):
                result |= _fused(entry, graph)
        for entry in profile.get("rules", ()):
            if graph.model_type in entry.get("model_type", [graph.model_type]):
                line = Line(f"op {entry['op']}", 0) if "op" in entry else Line(entry["nodes"], 2)
                nodes = [n for n in graph.nodes if n.op.name == entry.get("op")] or matches(entry.get("nodes"), graph)
                result |= {p: Value(v, line) for p, v in _set(nodes, entry["set"], graph) if p in result}
    result |= _placed(side.get("placement", {}), graph, result)
    for address, value in side.get("set", {}).items():
        selector, _, name = address.rpartition(":")
        line = Line(selector, 2)
        result |= {p: Value(v, line) for p, v in _set(matches(selector, graph), {name: value}, graph) if p in result}
    return result


def matches(selector: str | None, graph: Graph) -> list[Node]:
    """The nodes that a selector, or several joined by `, `, stand for."""
    patterns = [_pattern(part, graph.layers) for part in re.split(r", (?![^\[]*\])", selector or "")]
    return [node for node in graph.nodes if any(pattern.fullmatch(node.name) for pattern in patterns)]


def within(selector: str, graph: Graph) -> list[Node]:
    """The nodes a selector stands for, or that lie in what it names."""
    pattern = _pattern(selector, graph.layers)
    ends = {node.name: [m.start() for m in re.finditer(r"\.|$", node.name)] for node in graph.nodes}
    return [node for node in graph.nodes if any(pattern.fullmatch(node.name[:end]) for end in ends[node.name])]


def _pattern(selector: str, layers: int) -> re.Pattern[str]:
    def indices(match: re.Match[str]) -> str:
        chosen: list[int] = []
        for part in match[1].split(","):
            ends = [int(end) if end else None for end in part.split(":")] if part != "*" else [None, None]
            chosen += range(layers)[slice(*ends)] if len(ends) == 2 else [range(layers)[ends[0] or 0]]
        return "<" + "|".join(map(str, chosen)) + ">"

    text = re.sub(r"\[([^\]]*)\]", indices, selector)
    text = re.escape(text).replace(r"\*\*", ".*").replace(r"\*", "[^.]*").replace(r"\|", "|")
    return re.compile(text.replace("<", r"\[(").replace(">", r")\]"))


def _defaults(node: Node, graph: Graph) -> Iterator[tuple[Place, Any]]:
    for attribute in node.attributes:
        yield (node.name, attribute.name), attribute.default
        for reader in readers(node, graph) if attribute.edge else ():
            yield (node.name, f"{attribute.name}->{reader.name}"), "stored"


def readers(node: Node, graph: Graph) -> list[Node]:
    """Who reads a node's values."""
    return [reader for reader in graph.nodes if not set(reader.inputs).isdisjoint(node.values)]


def _chain(profile: str, folder: Path) -> list[dict[str, Any]]:
    """A profile and all it extends."""
    path = folder / profile if profile.startswith(".") else SHIPPED / f"{profile}.yaml"
    spec = read(path)
    return [spec, *(_chain(spec["extends"], path.parent) if "extends" in spec else ())]


def _set(nodes: list[Node], values: Mapping[str, Any], graph: Graph) -> Iterator[tuple[Place, Any]]:
    for node in nodes:
        for name, value in values.items():
            site, arrow, consumer = name.partition("->")
            if not arrow:
                yield (node.name, name), value
            for reader in readers(node, graph) if arrow else ():
                if reader.op.name == consumer or reader in matches(consumer, graph):
                    yield (node.name, f"{site}->{reader.name}"), value


def _fused(entry: Mapping[str, Any], graph: Graph) -> Settings:
    result: Settings = {}
    paths = [[node] for node in graph.nodes if node.op.name == entry["chain"][0]]
    for op in entry["chain"][1:]:
        paths = [[*path, reader] for path in paths for reader in readers(path[-1], graph) if reader.op.name == op]
    for path in paths:
        by_op = {node.op.name: node for node in path}
        for key, value in entry["set"].items():
            op, _, name = key.partition(":")
            site, arrow, consumer = name.partition("->")
            place = f"{site}->{by_op[consumer].name}" if arrow else name
            result[by_op[op].name, place] = Value(value, Line(f"fusion {entry['name']}", 1))
    return result


def _placed(placement: Mapping[str, Any], graph: Graph, settings: Settings) -> Settings:
    names = {"tensor": placement.get("tensor", 1), "expert": placement.get("expert", 1)}
    result: Settings = {}
    for name, ranks in names.items():
        for node in graph.nodes if ranks > 1 else ():
            whole = name == "tensor" and names["expert"] > 1 and node.op.name == "experts"
            if (node.name, name) in settings and not whole:
                result[node.name, name] = Value(ranks, Line(f"placement {name}", 0))
    return result
