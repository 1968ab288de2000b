"""The nodes that are to be explained. They stand in a plan that is cut down to what they need; this file also makes the
plans with other choices there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import networkx as nx

from moeparity.errors import SpecError
from moeparity.evidence.explain.faults import is_fault, with_faults
from moeparity.numerics.dtypes import EIGHT_BITS, FOUR_BITS
from moeparity.ops.attribute import EDGE, Value
from moeparity.plan.bound import Plan
from moeparity.plan.changed import in_all_phases, in_phases
from moeparity.plan.graph import Node, Segment
from moeparity.plan.schedule.cases import Case
from moeparity.plan.setting import FAULT, IMPL, Place, Setting

Choice = tuple[Place, Value]
Choices = frozenset[Choice]

KEPT: Final = 256
"""Of so many combinations the plan is kept, or why there is none."""

ROPE: Final = "rope"
THETA: Final = "rope_theta"
"""The parameter of `rotary` that holds the base of its frequencies, and the base's name there."""


@dataclass(frozen=True, kw_only=True)
class Replaced:
    """The nodes in whose place a user's function or another program computes. Their plan is cut down, in each phase, to
    these nodes and to what they read in the last node's segment. It runs no function.

    tail: the node that reads the last one's value as logits, whose choices may explain it too; else None. makers:
    choices of other nodes that made what these nodes read, if it is not known which choices were made. recorded: those
    of the nodes whose values are known, so that only what they hand on unstored is computed. own_settings:
    the settings that the side's profile makes for these nodes and that nobody runs, for each phase in which they are
    others. segment: all nodes of the last one's segment.
    """

    plan: Plan
    nodes: tuple[Node, ...]
    tail: Node | None
    own_settings: tuple[Mapping[Place, Setting], ...]
    segment: frozenset[str]
    makers: tuple[Place, ...] = ()
    recorded: frozenset[str] = frozenset()
    # All trials at a node are priced, then run and built upon, and binding takes as long as a kernel.
    _latest: dict[Choices, Plan | str] = field(init=False, repr=False, compare=False, default_factory=dict)

    @classmethod
    def of(
        cls,
        region: Sequence[str],
        base: Plan,
        own_plan: Plan,
        *,
        unknown: Collection[str] = (),
        phases: Sequence[Case] = (),
        recorded: frozenset[str] = frozenset(),
    ) -> Replaced:
        """The nodes of a region, in execution order, as the plan `base` runs them in some of its `phases` (none are
        named: in all). Of the `unknown` nodes it is not known whether what they hand on was made under their own
        choices.
        """
        own_plans = {id(at): at for at in map(own_plan.at_phase, phases or own_plan.phases)}.values()
        phases = tuple(phases) or base.phases
        graph, closing = base.graph, region[-1]
        segment = next(s for s in graph.segments if any(node.name == closing for node in s.nodes))
        inside = {node.name for node in segment.nodes}
        nodes = {node.name: node for node in graph.nodes if node.name in inside or node.name in region}
        is_output = graph.output in nodes[closing].values
        tail = next((n for n in segment.nodes if n.op.role.reports and graph.output in n.inputs and is_output), None)
        behind = () if tail is None else (tail.name,)
        names = {*region, *behind}.union(*(nx.ancestors(graph.digraph, n) for n in region)) & nodes.keys()
        cut = Segment(name=segment.name, nodes=tuple(node for node in nodes.values() if node.name in names))
        none = {(name, IMPL): Setting(value="", rule=None) for name in names}
        settings_of = {phase: {**_of_nodes(base.at_phase(phase), names), **none} for phase in phases}
        plan = Plan.bound(
            graph=replace(graph, segments=(cut,), digraph=graph.digraph.subgraph(names), cut_from=graph.whole),
            dtype=base.dtype,
            settings=settings_of[phases[0]],
            faults=base.faults,
            dormant=base.dormant,
            phases=phases,
        )
        return cls(
            plan=in_phases(plan, settings_of),
            nodes=tuple(node for node in cut.nodes if node.name in region),
            tail=tail,
            own_settings=tuple(_of_nodes(phase_plan, names) for phase_plan in own_plans),
            segment=frozenset(inside),
            recorded=recorded,
            makers=tuple(dict.fromkeys(place for place in _makers(cut.nodes, region) if place[0] in unknown)),
        )

    @property
    def all_nodes(self) -> tuple[Node, ...]:
        """The nodes whose choices may explain the function."""
        return self.nodes if self.tail is None else (*self.nodes, self.tail)

    @property
    def searched_nodes(self) -> tuple[Node, ...]:
        """The nodes of whose attributes, parameters and faults something is to be found."""
        return tuple(node for node in self.all_nodes if node.name not in self.recorded)

    @cached_property
    def history(self) -> tuple[str, ...]:
        """The values that the nodes make and read at earlier tokens too."""
        own_values = {value for node in self.nodes for value in node.values}
        read = (value for node in self.nodes for value in read_earlier(node))
        return tuple(dict.fromkeys(value for value in read if value in own_values))

    @cached_property
    def made_of(self) -> Mapping[str, frozenset[str]]:
        """By value that is read at earlier tokens, the nodes that it is made of."""
        digraph, names = self.plan.graph.digraph, {node.name for node in self.nodes}
        makers = {value: node.name for node in self.nodes for value in node.values}
        return {
            value: frozenset({makers[value], *nx.ancestors(digraph, makers[value])} & names) for value in self.history
        }

    @property
    def named_nodes(self) -> tuple[Node, ...]:
        """All nodes at which a choice may be named, in execution order."""
        names = {node.name for node in self.all_nodes}.union(name for name, _ in self.makers)
        return tuple(node for node in self.plan.graph.nodes if node.name in names)

    def kind(self, place: Place) -> str | None:
        """The kind of the choice at a place; None where the op declares none."""
        node = next(node for node in self.plan.graph.nodes if node.name == place[0])
        attribute = node.op.attribute(place[1].partition(EDGE)[0])
        return None if attribute is None else attribute.kind

    def is_on_grid(self, choice: Choice) -> bool:
        """Whether a choice rounds an operand of a GEMM to 8 or 4 bits."""
        return choice[1] in (*EIGHT_BITS, *FOUR_BITS) and self.kind(choice[0]) == "rounding"

    def bound(self, choices: Choices) -> Plan:
        """The plan with these choices, parameters aside. Raises SpecError where an op refuses them."""
        settings = {place: Setting(value=value, rule=None) for place, value in choices if place in self.plan.settings}
        faults = {place: value for place, value in choices if is_fault(place)}
        if not settings and not faults:
            return self.plan
        if choices not in self._latest:
            if len(self._latest) == KEPT:
                del self._latest[next(iter(self._latest))]
            try:
                self._latest[choices] = with_faults(in_all_phases(self.plan, settings), faults)
            except SpecError as error:
                self._latest[choices] = str(error)
        latest = self._latest[choices]
        if isinstance(latest, str):
            raise SpecError(latest)
        return latest

    def in_effect(self, choices: Choices) -> Choices:
        """The choices without attributes that beside the others take effect in no phase, and so change nothing.

        Raises SpecError where an op refuses the choices.
        """
        plans, nodes = self.bound(choices).distinct, {node.name: node for node in self.plan.graph.nodes}
        for place, value in sorted(choices, key=str):
            is_attribute = place in self.plan.settings and EDGE not in place[1]
            if is_attribute and all(place[1] not in at.active(nodes[place[0]]) for at in plans):
                fewer = choices - {(place, value)}
                # What is not in effect may still be a condition of what is.
                if self._as_run(self.bound(fewer)) == self._as_run(self.bound(choices)):
                    return self.in_effect(fewer)
        return choices

    def _as_run(self, plan: Plan) -> list[object]:
        """All that the nodes go by in each phase, parameters aside."""
        nodes = self.all_nodes
        return [
            (at.active(node), at.told_to(node), at.edges(node))
            for at in map(plan.at_phase, plan.phases)
            for node in nodes
        ]

    def let_go(self) -> None:
        """Forget the plans that were made."""
        self._latest.clear()

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
            and (EDGE in place[1] or place[0] not in self.recorded)
            and place[1] not in (IMPL, FAULT)
            and place in self.plan.settings
            and (EDGE not in place[1] or place[1].partition(EDGE)[2] in names)
            and self._differs(place, setting.value)
        )

    def _differs(self, place: Place, value: Value) -> bool:
        """Whether a value is another one than the plan's in some phase."""
        node = place[0]
        return any(
            phase_plan.resolved(node, value) != phase_plan.resolved(node, phase_plan.settings[place].value)
            for phase_plan in self.plan.distinct
        )


def read_earlier(node: Node) -> tuple[str, ...]:
    """The values that a node reads at earlier tokens of a sequence too."""
    return tuple(value for port, value in zip(node.ports, node.inputs, strict=True) if port in node.op.tokens.history)


def _makers(nodes: Sequence[Node], region: Sequence[str]) -> Iterator[Place]:
    """The choices of nodes outside of a region that nodes inside go along with."""
    by_value = {value: node for node in nodes for value in node.values}
    for node in nodes:
        inputs = dict(zip(node.ports, node.inputs, strict=True))
        for name, by in node.op.choices_elsewhere.items():
            maker = by_value.get(inputs.get(by.port, ""))
            while maker is not None and (maker.op.role.reduces or name in maker.op.choices_elsewhere):
                maker = by_value.get(maker.inputs[0])
            has = maker is not None and any(attribute.name == name for attribute in maker.attributes)
            if maker is not None and has and node.name in region and maker.name not in region:
                yield maker.name, name


def _of_nodes(plan: Plan, names: Collection[str]) -> dict[Place, Setting]:
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
