"""Graph + profile + a variant's own settings -> BoundGraph: frozen, every attribute with its value and origin.

A *place* is a node with the name of one of its choices: an attribute of its op, `site->consumer` for a site on one
edge, `dtype`, or `impl`. Everything two variants of a graph may differ in, schedule aside, is a place, so that a
mixture of both is made by taking places from the other.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace

from moeparity.errors import SpecError, Where, shown
from moeparity.numerics.dtypes import MODEL
from moeparity.ops.declaration import EDGE, STORED, Attribute, Value, holds
from moeparity.plan.engine_profile import Profile, Rule
from moeparity.plan.graph import UNSET, Graph, Node
from moeparity.plan.match import assignments
from moeparity.plan.partials import Partials, Told, inputs_read, partials, told
from moeparity.plan.region import Region

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

    @property
    def set_by(self) -> str:
        """What makes the engine run it, and the profile that says so; empty outside profiles."""
        return "" if self.rule is None else self.rule.cause

    @property
    def changed_by(self) -> str:
        """What a user of the engine would do to change it; empty where nothing is known to."""
        return "" if self.rule is None else self.rule.change

    @property
    def level(self) -> str:
        """How sure the profile is of the value; empty where nobody set it."""
        return "" if self.rule is None else self.rule.level


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundGraph:
    """One variant's plan: a graph, the dtype it nominally runs in, and a setting for every place.

    `regions` are the users' functions either side of a mixture knows, by closing node and call; a region is in force
    where the setting of its closing node names it. `like` is a plan of the same graph that has been checked: where
    this one is set alike, what was found there holds here too.
    """

    graph: Graph
    dtype: str
    settings: Mapping[Place, Setting]
    regions: Mapping[Place, Region] = field(default_factory=dict)
    like: InitVar[BoundGraph | None] = None
    told: Told = field(init=False)
    partials: Partials = field(init=False)
    _active: dict[str, Mapping[str, Value]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self, like: BoundGraph | None) -> None:
        """Raise SpecError where an op cannot run with these values, or with the partial sums it would read."""
        replacements = self.replaced()
        values = {node.name: self._values(node) for node in self.graph.nodes}
        object.__setattr__(self, "told", told(self.graph, values))
        object.__setattr__(self, "partials", partials(self.graph, values, replacements, self.told))
        same_nodes: frozenset[str] = frozenset() if like is None else self._same_nodes(like)
        if like is not None:
            self._active.update({node.name: like.active(node) for node in self.graph.nodes if node.name in same_nodes})
        makers = {value: node for node in self.graph.nodes for value in node.values}
        for node in self.graph.nodes:
            if node.name in replacements or node.name in same_nodes or not node.op.refuses:
                continue
            shapes = {port: ref.shape for port, ref in node.weights.items()} | self._sizes(node, makers)
            message = {"message": str(self.message_dtype(node, makers))}
            refusal = node.op.refuses(shapes, {**self.told_to(node), **self.active(node), **message})
            if refusal is not None:
                attribute, reason = refusal
                origin = self.settings[node.name, attribute].origin
                raise SpecError(f"{origin}: {node.name}:{attribute}: {reason}")

    def _same_nodes(self, like: BoundGraph) -> frozenset[str]:
        """The nodes at which nothing is other than in `like`, a user's function and partial sums aside."""
        if self.told != like.told or self.partials != like.partials or self.replaced() or like.replaced():
            return frozenset()
        set_otherwise = {
            place[0] for place, setting in self.settings.items() if setting.value != like.settings[place].value
        }
        # Who reads partial sums goes by their dtype too, which is their maker's choice.
        on_whole = (n.name for n in self.graph.nodes if all(self.partials[value] == 1 for value in n.inputs))
        return frozenset(on_whole) - set_otherwise

    def _sizes(self, node: Node, makers: Mapping[str, Node]) -> dict[str, tuple[int, ...]]:
        """What an op may also want to know: in how many partial sums its result and its inputs lie; its own parameters
        that are whole numbers, or true or false; and of inputs that a node with a `top_k` or `heads` made, or handed
        on, how many these are.
        """
        sizes: dict[str, tuple[int, ...]] = {"partials": (self.partials[node.values[0]],)}
        sizes |= {name: (value,) for name, value in node.params.items() if isinstance(value, int)}
        for port, value in zip(node.ports, node.inputs, strict=True):
            sizes[f"partials of {port}"] = (self.partials[value],)
            maker = makers.get(value)
            if maker is not None and maker.op.routes:
                sizes[port] = (maker.params["top_k"],)
            heads = _heads(maker, value, makers)
            if heads is not None:
                sizes[f"heads of {port}"] = (heads,)
        return sizes

    def _values(self, node: Node) -> dict[str, Value]:
        return {a.name: self.settings[node.name, a.name].value for a in node.attributes}

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

    def active(self, node: Node) -> Mapping[str, Value]:
        """The attributes that take effect on a node, with their values resolved."""
        if node.name not in self._active:
            self._active[node.name] = self._active_values(node)
        return self._active[node.name]

    def _active_values(self, node: Node) -> dict[str, Value]:
        choices = self.choices(node)
        return {
            a.name: choices[a.name] for a in node.attributes if holds(a.when, choices) and self._met(a, node, choices)
        }

    def choices(self, node: Node) -> dict[str, Value]:
        """All that conditions on a node may name: what it is told, and its attributes, resolved, in effect or not."""
        dtype = self.dtype_of(node.name)
        values = {name: dtype if value == MODEL else value for name, value in self._values(node).items()}
        return {**self.told_to(node), **values}

    def message_dtype(self, node: Node, makers: Mapping[str, Node]) -> str | None:
        """The dtype of the partial sums that a node's first input lies in; None where it is whole."""
        if self.partials[node.inputs[0]] == 1:
            return None
        maker = makers[node.inputs[0]]
        active = self.active(maker)
        if "partial" in active or "output" in active:
            return str(active.get("partial", active.get("output")))
        return self.message_dtype(maker, makers)

    def told_to(self, node: Node) -> Mapping[str, Value]:
        """The choices of other nodes that this one goes along with."""
        return self.told.get(node.name, {})

    def _met(self, attribute: Attribute, node: Node, choices: Mapping[str, Value]) -> bool:
        """Whether what the attribute needs beside other choices is there."""
        if attribute.needs == "always":
            return True
        if attribute.needs == "pieces":
            return node.op.pieces(choices) > 1
        reads = inputs_read(node, choices)
        inputs = (value for value, reads_it in zip(node.inputs, reads, strict=True) if reads_it)
        most = max(self.partials[value] for value in (*node.values, *inputs))
        return (most > 1) == (attribute.needs == "partials")

    def edges(self, node: Node) -> dict[str, tuple[str, Value]]:
        """Consumers that are handed another rounding than the one stored: consumer -> (site, dtype)."""
        roundings = {}
        for site, consumer in edges_of(self.graph, node):
            value = self.settings[node.name, f"{site}{EDGE}{consumer}"].value
            if value != STORED:
                roundings[consumer] = (site, self.resolved(node.name, value))
        return roundings

    def read_inputs(self, node: Node) -> tuple[str | None, ...]:
        """The node's input values; None in place of an input that is not read under these settings."""
        region = self.region(node.name)
        if region is not None:
            return region.inputs
        if not node.op.reads:
            return node.inputs
        reads = inputs_read(node, {**self.told_to(node), **self.active(node)})
        return tuple(value if reads_it else None for value, reads_it in zip(node.inputs, reads, strict=True))

    def region(self, node: str) -> Region | None:
        """The user's function that closes at this node, if one is in force there."""
        return self.regions.get((node, str(self.settings[node, IMPL].value)))

    def replaced(self) -> dict[str, Region]:
        """Every node whose own kernel is not run, with the region that stands in its place."""
        # A region in force is named by the setting of its closing node, so walking the known ones is enough.
        active = [region for (end, _), region in self.regions.items() if self.region(end) is region]
        return {node: region for region in active for node in region.nodes}

    def sees_rows(self, node: Node) -> bool:
        """Whether a token's result at a node may depend on which others are computed with it, as a function's may."""
        return node.name in self.replaced() or node.op.sees_rows(self.active(node), node.params)

    def with_settings(self, places: Iterable[Place], source: BoundGraph) -> BoundGraph:
        """This plan with the settings at `places` taken from `source`."""
        source_settings = {place: source.settings[place] for place in places}
        settings, regions = {**self.settings, **source_settings}, {**self.regions, **source.regions}
        return replace(self, settings=settings, regions=regions, like=self)


def _heads(maker: Node | None, value: str, makers: Mapping[str, Node]) -> int | None:
    """Into how many heads a value is cut, as far as ops hand that on."""
    while maker is not None and not maker.params.get("heads"):
        if not maker.op.keeps_heads:
            return None
        value = maker.inputs[maker.values.index(value)]
        maker = makers.get(value)
    return None if maker is None else int(maker.params["heads"])


def edges_of(graph: Graph, node: Node) -> Iterator[tuple[str, str]]:
    """The (site, consumer) pairs of a node: edges that may be handed a rounding of their own."""
    sites = [a.name for a in node.attributes if a.edge]
    if sites:
        yield from ((site, consumer) for site in sites for consumer in graph.digraph.successors(node.name))


def bind(
    graph: Graph,
    profile: Profile,
    dtype: str,
    overrides: tuple[Rule, ...] = (),
    regions: Sequence[Region] = (),
    placement: tuple[Rule, ...] = (),
    over: tuple[Rule, ...] = (),
) -> BoundGraph:
    """The plan of one variant; later wins: op defaults, extended profiles, fusions, rules, `placement`,
    `overrides`, `over`.

    Raises SpecError where a value is not allowed, two rules of one layer disagree or two regions overlap, GraphError
    where a `nodes` selector matches nothing.
    """
    settings: dict[Place, Setting] = {}
    for node in graph.nodes:
        settings[node.name, DTYPE] = Setting(value=dtype, rule=None)
        settings[node.name, IMPL] = Setting(value="", rule=None)
        settings |= {(node.name, a.name): Setting(value=a.default, rule=None) for a in node.attributes}
        for site, consumer in edges_of(graph, node):
            settings[node.name, f"{site}{EDGE}{consumer}"] = Setting(value=STORED, rule=None)
    for layer in (*profile.layers, placement, overrides, over):
        settings |= _layer(graph, layer, settings.keys())
    for region in regions:
        settings[region.nodes[-1], IMPL] = Setting(value=region.call, rule=region.rule)
    region_of = {(region.nodes[-1], region.call): region for region in regions}
    return BoundGraph(graph=graph, dtype=dtype, settings=settings, regions=region_of)


def _layer(graph: Graph, rules: Iterable[Rule], places: Iterable[Place]) -> dict[Place, Setting]:
    settings: dict[Place, Setting] = {}
    graph_places = set(places)
    for rule in rules:
        values = list(assignments(graph, rule))
        _refuse_absent(graph, graph_places, rule, [(node, name) for node, name, _ in values])
        for node, name, value in values:
            place = (node, name)
            if place in graph_places:
                _refuse_conflict(place, settings.get(place), rule, value)
                settings[place] = Setting(value=value, rule=rule)
    return settings


def _refuse_absent(graph: Graph, graph_places: Container[Place], rule: Rule, places: Sequence[Place]) -> None:
    """An attribute that a `nodes` rule names must exist on one of its nodes, or the setting would be lost."""
    for absent in dict.fromkeys(name for _, name in places) if rule.nodes else ():
        rule_places = [place for place in places if place[1] == absent]
        if any(place in graph_places for place in rule_places):
            continue
        node = next(node for node in graph.nodes if node.name == rule_places[0][0])
        attribute = node.op.attribute(absent)
        assert attribute is not None
        reason = _absence(node, attribute)
        raise SpecError(f"{rule.where}: {rule.nodes}:{absent} changes nothing at {node.name}: {reason}. Leave it out.")


def _absence(node: Node, attribute: Attribute) -> str:
    """Why an attribute does not exist on a node."""
    unset = [name for name in (attribute.parameter,) if name is not None and node.params[name] in UNSET]
    unset += [name for name, values in attribute.given.items() if not holds({name: values}, node.params)]
    if unset:
        return f"its {unset[0]} is {shown(node.params[unset[0]])}"
    return f"it has no {attribute.weight or f'input {attribute.input}'}"


def _refuse_conflict(place: Place, earlier: Setting | None, rule: Rule, value: Value) -> None:
    if earlier is not None and earlier.value != value and earlier.rule is not None:
        raise SpecError(
            f"{rule.where}: {rule.label} sets {place[0]}:{place[1]} to {value!r}, but "
            f"{_other_place(earlier.rule.where, rule)} ({earlier.rule.label}) sets it to {earlier.value!r}. "
            "Narrow their selectors so that they do not overlap."
        )


def _other_place(where: Where, rule: Rule) -> str:
    return f"line {where.line}" if where.path == rule.where.path and where != rule.where else str(where)
