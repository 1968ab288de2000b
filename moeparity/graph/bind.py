"""Graph + profile + a variant's own settings -> BoundGraph: frozen, every attribute with its value and origin.

A *place* is a node with the name of one of its choices: an attribute of its op, `site->consumer` for a site on one
edge, `dtype`, or `impl`. Everything two variants of a graph may differ in, schedule aside, is a place, so that a
mixture of both is made by taking places from the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from moeparity.errors import SpecError, Where
from moeparity.graph.graph import Graph, Node
from moeparity.graph.match import assignments
from moeparity.graph.profile import Profile, Rule
from moeparity.graph.region import Region
from moeparity.numerics.dtypes import MODEL
from moeparity.ops.declaration import EDGE, STORED, Attribute, Value, holds

Place = tuple[str, str]
"""A node name and the name of a choice there."""

DTYPE, IMPL = "dtype", "impl"
"""Choices every node has: the dtype it runs in, and a user's function in place of its kernel ("": none)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The value at one place, and the rule it comes from (None: the op's or the variant's default)."""

    value: Value
    rule: Rule | None

    @property
    def origin(self) -> str:
        """Where the value was set, for people."""
        return "default of the op" if self.rule is None else f"{self.rule.where} ({self.rule.label})"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundGraph:
    """One variant's plan: a graph, the dtype it nominally runs in, and a setting for every place.

    `regions` are the users' functions either side of a mixture knows, by closing node and call; a region is in force
    where the setting of its closing node names it.
    """

    graph: Graph
    dtype: str
    settings: Mapping[Place, Setting]
    regions: Mapping[Place, Region] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise SpecError where an op cannot run with these values."""
        replaced = self.replaced()
        for node in self.graph.nodes:
            if node.name in replaced or not node.op.refuses:
                continue
            shapes = {port: ref.shape for port, ref in node.weights.items()} | self._chosen(node)
            refusal = node.op.refuses(shapes, self.active(node))
            if refusal is not None:
                attribute, reason = refusal
                origin = self.settings[node.name, attribute].origin
                raise SpecError(f"{origin}: {node.name}:{attribute}: {reason}")

    def _chosen(self, node: Node) -> dict[str, tuple[int, ...]]:
        """For inputs that a node with a `top_k` makes, how many of them a token has: the last axis."""
        makers = {value: maker.params for maker in self.graph.nodes for value in maker.values}
        made = zip(node.op.inputs, (makers.get(value, {}) for value in node.inputs), strict=True)
        return {port: (params["top_k"],) for port, params in made if "top_k" in params}

    def dtype_of(self, node: str) -> str:
        """The dtype a node runs in: the variant's own, or the other side's in a mixture."""
        return str(self.settings[node, DTYPE].value)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Every dtype that some node runs in."""
        return tuple(dict.fromkeys(self.dtype_of(node.name) for node in self.graph.nodes))

    def resolved(self, node: str, value: Value) -> Value:
        """`model` becomes the dtype the node runs in."""
        return self.dtype_of(node) if value == MODEL else value

    def active(self, node: Node) -> dict[str, Value]:
        """The attributes that take effect on a node, with their values resolved."""
        values = {a.name: self.resolved(node.name, self.settings[node.name, a.name].value) for a in attributes_of(node)}
        return {a.name: values[a.name] for a in attributes_of(node) if holds(a.when, values)}

    def edges(self, node: Node) -> dict[str, tuple[str, Value]]:
        """Consumers that are handed another rounding than the one stored: consumer -> (site, dtype)."""
        found = {}
        for site, consumer in edges_of(self.graph, node):
            value = self.settings[node.name, f"{site}{EDGE}{consumer}"].value
            if value != STORED:
                found[consumer] = (site, self.resolved(node.name, value))
        return found

    def read_inputs(self, node: Node) -> tuple[str | None, ...]:
        """The node's input values; None in place of an input that is not read under these settings."""
        region = self.region(node.name)
        if region is not None:
            return region.inputs
        if not node.op.reads:
            return node.inputs
        active = self.active(node)
        conditions = node.op.reads
        return tuple(
            value if holds(conditions.get(port, {}), active) else None
            for port, value in zip(node.op.inputs, node.inputs, strict=True)
        )

    def region(self, node: str) -> Region | None:
        """The user's function that closes at this node, if one is in force there."""
        return self.regions.get((node, str(self.settings[node, IMPL].value)))

    def replaced(self) -> dict[str, Region]:
        """Every node whose own kernel is not run, with the region that stands in its place."""
        # A region in force is named by the setting of its closing node, so walking the known ones is enough.
        active = [region for (closing, _), region in self.regions.items() if self.region(closing) is region]
        return {node: region for region in active for node in region.nodes}

    def with_settings(self, places: Iterable[Place], source: BoundGraph) -> BoundGraph:
        """This plan with the settings at `places` taken from `source`."""
        taken = {place: source.settings[place] for place in places}
        return replace(self, settings={**self.settings, **taken}, regions={**self.regions, **source.regions})


def attributes_of(node: Node) -> list[Attribute]:
    """The attributes that exist on a node: those of its op that need no parameter, or one that is truthy there."""
    return [a for a in node.op.attributes if a.parameter is None or node.params[a.parameter]]


def edges_of(graph: Graph, node: Node) -> Iterator[tuple[str, str]]:
    """The (site, consumer) pairs of a node: edges that may be handed a rounding of their own."""
    sites = [a.name for a in attributes_of(node) if a.edge]
    if sites:
        yield from ((site, consumer) for site in sites for consumer in graph.digraph.successors(node.name))


def bind(
    graph: Graph, profile: Profile, dtype: str, own: tuple[Rule, ...] = (), regions: Sequence[Region] = ()
) -> BoundGraph:
    """The plan of one variant; precedence: op defaults < extended profiles < fusions < rules < `own`.

    Raises SpecError where a value is not allowed, two rules of one layer disagree or two regions overlap, GraphError
    where a `nodes` selector matches nothing.
    """
    settings: dict[Place, Setting] = {}
    for node in graph.nodes:
        settings[node.name, DTYPE] = Setting(value=dtype, rule=None)
        settings[node.name, IMPL] = Setting(value="", rule=None)
        settings |= {(node.name, a.name): Setting(value=a.default, rule=None) for a in attributes_of(node)}
        for site, consumer in edges_of(graph, node):
            settings[node.name, f"{site}{EDGE}{consumer}"] = Setting(value=STORED, rule=None)
    for layer in (*profile.layers, own):
        settings |= _layer(graph, layer, settings.keys())
    for region in regions:
        settings[region.nodes[-1], IMPL] = Setting(value=region.call, rule=region.rule)
    known = {(region.nodes[-1], region.call): region for region in regions}
    return BoundGraph(graph=graph, dtype=dtype, settings=settings, regions=known)


def _layer(graph: Graph, rules: Iterable[Rule], known: Iterable[Place]) -> dict[Place, Setting]:
    settings: dict[Place, Setting] = {}
    existing = set(known)
    for rule in rules:
        for node, name, value in assignments(graph, rule):
            place = (node, name)
            if place in existing:
                _refuse_conflict(place, settings.get(place), rule, value)
                settings[place] = Setting(value=value, rule=rule)
    return settings


def _refuse_conflict(place: Place, earlier: Setting | None, rule: Rule, value: Value) -> None:
    if earlier is not None and earlier.value != value and earlier.rule is not None:
        raise SpecError(
            f"{rule.where}: {rule.label} sets {place[0]}:{place[1]} to {value!r}, but "
            f"{_other(earlier.rule.where, rule)} ({earlier.rule.label}) sets it to {earlier.value!r}. "
            "Narrow their selectors so that they do not overlap."
        )


def _other(where: Where, rule: Rule) -> str:
    return f"line {where.line}" if where.path == rule.where.path and where != rule.where else str(where)
