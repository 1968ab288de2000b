"""Graph + profile + a variant's own settings -> BoundGraph: frozen, every attribute with its value and origin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from moeparity.errors import SpecError, Where
from moeparity.graph.address import select
from moeparity.graph.graph import Graph, Node
from moeparity.graph.profile import Profile, Rule, checked
from moeparity.numerics.dtypes import MODEL
from moeparity.ops.declaration import Attribute, Value, holds

Place = tuple[str, str]
"""A node name and an attribute name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The value of one attribute of one node, and the rule it comes from (None: the op's default)."""

    value: Value
    rule: Rule | None

    @property
    def origin(self) -> str:
        """Where the value was set, for people."""
        return "default of the op" if self.rule is None else f"{self.rule.where} ({self.rule.label})"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundGraph:
    """One variant's plan: a graph, the dtype it runs in, and a setting for every attribute of every node."""

    graph: Graph
    dtype: str
    settings: Mapping[Place, Setting]

    def __post_init__(self) -> None:
        """Raise SpecError where an op cannot run with these values."""
        for node in self.graph.nodes:
            shapes = {port: ref.shape for port, ref in node.weights.items()}
            refusal = node.op.refuses(shapes, self.active(node)) if node.op.refuses else None
            if refusal is not None:
                attribute, reason = refusal
                origin = self.settings[node.name, attribute].origin
                raise SpecError(f"{origin}: {node.name}:{attribute}: {reason}")

    def resolved(self, value: Value) -> Value:
        """`model` becomes the dtype this variant runs in."""
        return self.dtype if value == MODEL else value

    def active(self, node: Node) -> dict[str, Value]:
        """The attributes that take effect on a node, with their values resolved."""
        values = {a.name: self.resolved(self.settings[node.name, a.name].value) for a in attributes_of(node)}
        return {a.name: values[a.name] for a in attributes_of(node) if holds(a.when, values)}

    def read_inputs(self, node: Node) -> tuple[str | None, ...]:
        """The node's input values; None in place of an input that is not read under these settings."""
        if not node.op.reads:
            return node.inputs
        active = self.active(node)
        conditions = node.op.reads
        return tuple(
            value if holds(conditions.get(port, {}), active) else None
            for port, value in zip(node.op.inputs, node.inputs, strict=True)
        )

    def with_settings(self, places: Iterable[Place], source: BoundGraph) -> BoundGraph:
        """This plan with the settings at `places` taken from `source`."""
        taken = {place: source.settings[place] for place in places}
        return replace(self, settings={**self.settings, **taken})

    def with_dtype(self, dtype: str) -> BoundGraph:
        """This plan run in another dtype."""
        return replace(self, dtype=dtype)


def attributes_of(node: Node) -> list[Attribute]:
    """The attributes that exist on a node: those of its op that need no parameter, or one that is truthy there."""
    return [a for a in node.op.attributes if a.parameter is None or node.params[a.parameter]]


def bind(graph: Graph, profile: Profile, dtype: str, own: tuple[Rule, ...] = ()) -> BoundGraph:
    """The plan of one variant; precedence: op defaults < extended profiles < the profile < `own`.

    Raises SpecError where a value is not allowed or two rules of one layer disagree, GraphError where a `nodes`
    selector matches nothing.
    """
    settings: dict[Place, Setting] = {
        (node.name, a.name): Setting(value=a.default, rule=None) for node in graph.nodes for a in attributes_of(node)
    }
    for layer in (*profile.layers, own):
        settings |= _layer(graph, layer)
    return BoundGraph(graph=graph, dtype=dtype, settings=settings)


def _layer(graph: Graph, rules: Iterable[Rule]) -> dict[Place, Setting]:
    settings: dict[Place, Setting] = {}
    for rule in rules:
        for node in _matched(graph, rule):
            for name, value in rule.values:
                attribute, kept = checked(node.op, name, value, rule.where)
                if attribute not in attributes_of(node):
                    continue
                place = (node.name, name)
                _refuse_conflict(place, settings.get(place), rule, kept)
                settings[place] = Setting(value=kept, rule=rule)
    return settings


def _matched(graph: Graph, rule: Rule) -> list[Node]:
    if rule.model_types is not None and graph.model_type not in rule.model_types:
        return []
    if rule.op is not None:
        return [node for node in graph.nodes if node.op.name == rule.op]
    assert rule.nodes is not None
    names = select(rule.nodes, [node.name for node in graph.nodes], graph.layers, rule.where)
    chosen = set(names)
    return [node for node in graph.nodes if node.name in chosen]


def _refuse_conflict(place: Place, earlier: Setting | None, rule: Rule, value: Value) -> None:
    if earlier is not None and earlier.value != value and earlier.rule is not None:
        raise SpecError(
            f"{rule.where}: {rule.label} sets {place[0]}:{place[1]} to {value!r}, but "
            f"{_other(earlier.rule.where, rule)} ({earlier.rule.label}) sets it to {earlier.value!r}. "
            "Narrow their selectors so that they do not overlap."
        )


def _other(where: Where, rule: Rule) -> str:
    return f"line {where.line}" if where.path == rule.where.path and where != rule.where else str(where)
