"""The known choices at the nodes of what is to be explained: listed values, whole numbers, numbers to be solved for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import networkx as nx

from moeparity.evidence.explain.faults import is_fault, planted_at, with_faults
from moeparity.evidence.explain.numbers import digits, figures
from moeparity.numerics.dtypes import FLOAT_NAMES, MODEL
from moeparity.ops.declaration import EDGE, Attribute, Value
from moeparity.plan.bind import BoundGraph
from moeparity.plan.graph import Node, Segment
from moeparity.plan.setting import FAULT, IMPL, Place, Setting, edges_of

Choice = tuple[Place, Value]
Choices = frozenset[Choice]

WHOLE_NUMBERS: Final = tuple(sorted({*range(33), *(2**i for i in range(13)), *(3 * 2**i for i in range(11))}))
"""Whole numbers that are tried where any is allowed: all up to 32, then powers of two, and three times these."""

RANKS: Final = (1, 2, 4, 8, 16)
"""Over so many ranks a node is tried."""

KEPT: Final = 16
"""Of so many combinations the plan is kept."""

OUTPUT: Final = "output"
"""The site at which an op's result is rounded."""

ROPE, THETA = "rope", "rope_theta"
"""The parameter of `rotary` that holds the base of its frequencies, and the base's name there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """The nodes that a user's function or another program computes in place of, in a plan that is cut down to them and
    what they read in the last one's segment, in each of its phases, and runs no function.

    tail: the node that reads the last one's value as logits, whose choices may explain it too; None elsewhere.
    makers: choices of other nodes that these go along with, where it is not known which were made.
    own: the settings of its side, which its profile makes and nobody runs, phase by phase where they are others.
    segment: all nodes of the last one's.
    """

    plan: BoundGraph
    nodes: tuple[Node, ...]
    tail: Node | None
    own: tuple[Mapping[Place, Setting], ...]
    segment: frozenset[str]
    makers: tuple[Place, ...] = ()
    # A combination is priced, run on every micro-batch and built upon in a row, and binding takes as long as a kernel.
    _latest: dict[Choices, BoundGraph] = field(init=False, repr=False, compare=False, default_factory=dict)

    @classmethod
    def of(cls, region: Sequence[str], base: BoundGraph, own: BoundGraph, *, unknown: Collection[str] = ()) -> Replaced:
        """The nodes of a region, in execution order, as the plan `base` runs them. Of what the `unknown` nodes hand on
        it is not known whether it was made under its choices.
        """
        graph, closing = base.graph, region[-1]
        segment = next(s for s in graph.segments if any(node.name == closing for node in s.nodes))
        inside = {node.name for node in segment.nodes}
        nodes = {node.name: node for node in graph.nodes if node.name in inside or node.name in region}
        is_output = graph.output in nodes[closing].values
        tail = next((n for n in segment.nodes if n.op.reports and graph.output in n.inputs and is_output), None)
        behind = () if tail is None else (tail.name,)
        names = {*region, *behind}.union(*(nx.ancestors(graph.digraph, n) for n in region)) & nodes.keys()
        cut = Segment(name=segment.name, nodes=tuple(node for node in nodes.values() if node.name in names))
        none = {(name, IMPL): Setting(value="", rule=None) for name in names}
        settings_of = {phase: {**_of_nodes(base.at_phase(phase), names), **none} for phase in base.phases}
        plan = BoundGraph(
            graph=replace(graph, segments=(cut,), digraph=graph.digraph.subgraph(names), cut_from=graph.whole),
            dtype=base.dtype,
            settings=settings_of[base.phases[0]],
            faults=base.faults,
            dormant=base.dormant,
            phases=base.phases,
        )
        return cls(
            plan=plan.in_phases(settings_of),
            nodes=tuple(node for node in cut.nodes if node.name in region),
            tail=tail,
            own=tuple(_of_nodes(one, names) for one in own.distinct),
            segment=frozenset(inside),
            makers=tuple(dict.fromkeys(place for place in _makers(cut.nodes, region) if place[0] in unknown)),
        )

    @property
    def all_nodes(self) -> tuple[Node, ...]:
        """The nodes whose choices may explain the function."""
        return self.nodes if self.tail is None else (*self.nodes, self.tail)

    @property
    def named_nodes(self) -> tuple[Node, ...]:
        """All nodes at which a choice may be named, in execution order."""
        names = {node.name for node in self.all_nodes}.union(name for name, _ in self.makers)
        return tuple(node for node in self.plan.graph.nodes if node.name in names)

    def bound(self, choices: Choices) -> BoundGraph:
        """The plan with these choices, parameters aside. Raises SpecError where an op refuses them."""
        settings = {place: Setting(value=value, rule=None) for place, value in choices if place in self.plan.settings}
        faults = {place: value for place, value in choices if is_fault(place)}
        if not settings and not faults:
            return self.plan
        if choices not in self._latest:
            if len(self._latest) == KEPT:
                del self._latest[next(iter(self._latest))]
            self._latest[choices] = with_faults(self.plan.in_all_phases(settings), faults)
        return self._latest[choices]

    def params(self, node: Node, choices: Choices) -> Mapping[str, Any]:
        """A node's parameters with those among the choices in place of its own."""
        params = dict(node.params)
        for (name, parameter), value in choices:
            if name == node.name and parameter == THETA:
                params[ROPE] = {**params[ROPE], THETA: value}
            elif name == node.name and parameter in params and (name, parameter) not in self.plan.settings:
                params[parameter] = value
        return params

    def as_chosen(self, settings: Mapping[Place, Setting]) -> Choices:
        """What these settings make otherwise at the replaced nodes, as far as it takes effect."""
        names = {node.name for node in self.nodes}
        return frozenset(
            (place, self.plan.resolved(place[0], setting.value))
            for place, setting in settings.items()
            if (place[0] in names or place in self.makers)
            and place[1] not in (IMPL, FAULT)
            and place in self.plan.settings
            and (EDGE not in place[1] or place[1].partition(EDGE)[2] in names)
            and self._differs(place, setting.value)
        )

    def _differs(self, place: Place, value: Value) -> bool:
        """Whether a value is another one than the plan's in some phase."""
        node = place[0]
        return any(
            one.resolved(node, value) != one.resolved(node, one.settings[place].value) for one in self.plan.distinct
        )


def _makers(nodes: Sequence[Node], region: Sequence[str]) -> Iterator[Place]:
    """The choices of nodes outside of a region that nodes inside go along with."""
    by_value = {value: node for node in nodes for value in node.values}
    for node in nodes:
        inputs = dict(zip(node.ports, node.inputs, strict=True))
        for name, by in node.op.told.items():
            maker = by_value.get(inputs.get(by.port, ""))
            while maker is not None and (maker.op.reduces or name in maker.op.told):
                maker = by_value.get(maker.inputs[0])
            has = maker is not None and any(attribute.name == name for attribute in maker.attributes)
            if maker is not None and has and node.name in region and maker.name not in region:
                yield maker.name, name


def _of_nodes(plan: BoundGraph, names: Collection[str]) -> dict[Place, Setting]:
    return {place: setting for place, setting in plan.settings.items() if place[0] in names}


def relative(replaced: Replaced, choices: Choices) -> Choices:
    """The choices with nodes counted from the region's first, as another layer's region has them too."""
    number = {node.name: str(i) for i, node in enumerate(replaced.named_nodes)}
    return _renamed(choices, number)


def absolute(replaced: Replaced, choices: Choices) -> Choices:
    """The inverse of `relative`, at this region's nodes."""
    return _renamed(choices, {str(i): node.name for i, node in enumerate(replaced.named_nodes)})


def _renamed(choices: Choices, names: Mapping[str, str]) -> Choices:
    renamed = set()
    for (node, name), value in choices:
        site, arrow, consumer = name.partition(EDGE)
        renamed.add(((names[node], f"{site}{arrow}{names[consumer] if arrow else ''}"), value))
    return frozenset(renamed)


def listed_choices(replaced: Replaced, plan: BoundGraph) -> Iterator[Choice]:
    """Every value that is listed, in use or a whole number and makes a node compute otherwise than `plan` does in some
    phase.
    """
    every = (choice for one in plan.distinct for choice in _listed_in(replaced, one))
    yield from dict.fromkeys(every)


def _listed_in(replaced: Replaced, plan: BoundGraph) -> Iterator[Choice]:
    nodes = {node.name: node for node in plan.graph.nodes}
    for name, told in replaced.makers:
        attribute, value = nodes[name].op.attribute(told), plan.resolved(name, plan.settings[name, told].value)
        assert attribute is not None, "a node tells of an attribute of its own"
        yield from (((name, told), other) for other in _values(attribute) if other != value)
    for node in replaced.all_nodes:
        active = plan.active(node)
        for attribute in node.attributes:
            if attribute.name in active:
                values = (v for v in _values(attribute) if plan.resolved(node.name, v) != active[attribute.name])
                yield from (((node.name, attribute.name), value) for value in values)
        names = {other.name for other in replaced.nodes}
        for site, consumer in edges_of(plan.graph, node):
            place = (node.name, f"{site}{EDGE}{consumer}")
            if consumer in names:
                yield from ((place, v) for v in FLOAT_NAMES if v not in (plan.settings[place].value, active.get(site)))


def _values(attribute: Attribute) -> Iterator[Value]:
    if attribute.kind != "placement":
        yield from (value for value in attribute.values if value != MODEL)
        yield from attribute.usual
    if attribute.least is not None:
        numbers = RANKS if attribute.kind == "placement" else WHOLE_NUMBERS
        yield from (number for number in numbers if number >= attribute.least)


def numbers(replaced: Replaced, plan: BoundGraph) -> Iterator[tuple[Place, float]]:
    """The places at which any number may stand, with the one that stands there first: attributes, then parameters."""
    places: dict[Place, float] = {}
    for one in plan.distinct:
        places = dict(_numbers_in(replaced, one)) | places
    yield from places.items()


def _numbers_in(replaced: Replaced, plan: BoundGraph) -> Iterator[tuple[Place, float]]:
    for node in replaced.all_nodes:
        active = plan.active(node)
        attributes = [attribute for attribute in node.attributes if attribute.number and attribute.name in active]
        for attribute in attributes:
            value = active[attribute.name]
            yield (node.name, attribute.name), float(node.params[attribute.name] if isinstance(value, str) else value)
        known = {attribute.name for attribute in node.attributes}
        for name, value in node.params.items():
            if isinstance(value, float) and name not in known:
                yield (node.name, name), value
            if name == ROPE and isinstance(value, Mapping) and THETA in value:
                yield (node.name, THETA), float(value[THETA])


def stated_number(replaced: Replaced, place: Place, value: Value) -> Value:
    """The number that a word stands for at a place, such as an eps of `config`; any other value as it is."""
    node = next(node for node in replaced.plan.graph.nodes if node.name == place[0])
    attribute = node.op.attribute(place[1])
    is_word = attribute is not None and attribute.number and isinstance(value, str)
    return float(node.params[place[1]]) if is_word else value


def whole_number(replaced: Replaced, place: Place, value: Value) -> bool:
    """Whether a value is one of the whole numbers of which any is allowed at a place."""
    node = next(node for node in replaced.plan.graph.nodes if node.name == place[0])
    attribute = node.op.attribute(place[1])
    return attribute is not None and attribute.least is not None and not isinstance(value, str)


def in_one_dtype(replaced: Replaced) -> Iterator[Choices]:
    """All values of the nodes rounded to one dtype, or all but what they give; the plan's own dtype left out."""
    sites = [
        (node.name, attribute.name)
        for node in replaced.all_nodes
        for attribute in node.attributes
        if attribute.kind == "rounding"
    ]
    for dtype in FLOAT_NAMES:
        if dtype != replaced.plan.dtype:
            every = frozenset((place, dtype) for place in sites if dtype in _allowed(replaced, place))
            yield from (every, frozenset(choice for choice in every if choice[0][1] != OUTPUT))


def _allowed(replaced: Replaced, place: Place) -> tuple[str, ...]:
    node = next(node for node in replaced.all_nodes if node.name == place[0])
    attribute = node.op.attribute(place[1])
    return () if attribute is None else attribute.values


def plainness(replaced: Replaced, choices: Choices, in_profiles: Choices) -> tuple[object, ...]:
    """A key that sorts the plainest first: fewest settings, then no faults, then values of the function's side or the
    op's default, then values that some engine's profile has, then the shortest numbers, then what is listed first.
    """
    nodes = {node.name: node for node in replaced.named_nodes}

    def at_home(choice: Choice) -> bool:
        (node, name), value = choice
        attribute = nodes[node].op.attribute(name)
        default = None if attribute is None else attribute.default
        return value in (default, *(own[choice[0]].value for own in replaced.own if choice[0] in own))

    def listed_as(choice: Choice) -> int:
        attribute = nodes[choice[0][0]].op.attribute(choice[0][1])
        return attribute.values.index(str(choice[1])) if attribute and choice[1] in attribute.values else 0

    strangers = [choice for choice in choices if not at_home(choice)]
    return (
        len(choices),
        sum(is_fault(place) for place, _ in choices),
        len(strangers),
        sum(choice not in in_profiles for choice in strangers),
        _length(choices),
        sum(map(listed_as, choices)),
        in_words(replaced.named_nodes, choices),
    )


def _length(choices: Choices) -> int:
    """How many digits the numbers have; a whole power of two has none."""
    numbers = [value for _, value in choices if not isinstance(value, str)]
    return sum(0 if isinstance(x, int) and x > 0 and x & (x - 1) == 0 else figures(x) for x in numbers)


def plainest_numbers(variants: Sequence[Choices]) -> Choices:
    """Of combinations that differ in numbers only, that with the shortest, and of these nearest the middle of all."""
    ends = number_ranges(variants)

    def from_middle(choices: Choices) -> float:
        return sum(abs(x - sum(ends[place]) / 2) for place, x in choices if isinstance(x, float))

    return min(variants, key=lambda c: (_length(c), from_middle(c), sorted(map(str, c))))


def number_ranges(variants: Sequence[Choices]) -> dict[Place, tuple[float, float]]:
    """From the least to the greatest number at each place."""
    numbers: dict[Place, list[float]] = {}
    for choices in variants:
        for place, value in choices:
            if not isinstance(value, str):
                numbers.setdefault(place, []).append(value)
    return {place: (min(values), max(values)) for place, values in numbers.items()}


def places(choices: Choices) -> frozenset[Place]:
    """Where choices are made."""
    return frozenset(place for place, _ in choices)


def without_numbers(choices: Choices) -> Choices:
    """The choices with every number left open."""
    return frozenset((place, value if isinstance(value, str) else "a number") for place, value in choices)


def in_order(nodes: Sequence[Node], choices: Choices) -> list[Choice]:
    """The choices in the order in which the nodes are run."""
    order = [node.name for node in nodes]
    return sorted(choices, key=lambda choice: (order.index(choice[0][0]), choice[0][1]))


def in_words(nodes: Sequence[Node], choices: Choices) -> tuple[str, ...]:
    """As `node:attribute=value`, or `node:fault=name(values)`, in the order in which the nodes are run."""
    return tuple(_in_words(place, value) for place, value in in_order(nodes, choices))


def _in_words(place: Place, value: Value) -> str:
    if is_fault(place):
        return f"{place[0]}:{FAULT}={planted_at(place, value)}"
    return f"{place[0]}:{place[1]}={written(value)}"


def written(value: Value) -> str:
    """A value as text: a number with as many digits as it has, up to seven."""
    return f"{value:.7g}" if isinstance(value, float) and digits(value) > 7 else str(value)
