"""Rules in layers -> a setting for every place of a graph, in each phase."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from moeparity.errors import SpecError, Where, listed, shown
from moeparity.ops.attribute import EDGE, STORED, Attribute, Value, holds
from moeparity.plan.faults.fault import FaultyNode
from moeparity.plan.graph import UNSET, Graph, Node
from moeparity.plan.latest import Latest
from moeparity.plan.match import assignments
from moeparity.plan.region import Region
from moeparity.plan.rule import Rule
from moeparity.plan.schedule.cases import OF_ATTENTION, Case
from moeparity.plan.setting import DTYPE, FAULT, IMPL, Place, Setting, edges_of


@dataclass(frozen=True, slots=True)
class Layered:
    """The settings of a graph in one phase: one for every place, and `dormant` ones for attributes that a node lacks
    but that a fault may give it.
    """

    settings: Mapping[Place, Setting]
    dormant: Mapping[Place, Setting]


_UNSET: Final[Latest[Layered]] = Latest(16)


def unset(graph: Graph, dtype: str) -> Layered:
    """The settings before any rule: the ops' defaults at every place, and a variant's dtype."""
    return _UNSET.of((graph,), dtype, lambda: _unset(graph, dtype))


def _unset(graph: Graph, dtype: str) -> Layered:
    settings: dict[Place, Setting] = {}
    for node in graph.nodes:
        settings[node.name, DTYPE] = Setting(value=dtype, rule=None)
        settings[node.name, IMPL] = settings[node.name, FAULT] = Setting(value="", rule=None)
        settings |= {(node.name, a.name): Setting(value=a.default, rule=None) for a in node.attributes}
        for site, consumer in edges_of(graph, node):
            settings[node.name, f"{site}{EDGE}{consumer}"] = Setting(value=STORED, rule=None)
    return Layered(settings, {})


def in_phases(
    graph: Graph,
    base: Mapping[Case, Layered],
    layers: Sequence[Sequence[Rule]],
    regions: Sequence[Region] = (),
    faults: Sequence[FaultyNode] = (),
) -> Mapping[Case, Layered]:
    """The settings in each phase: those of `base`, overridden by the rules; later layers win, and of faults at one node
    the later.

    Raises SpecError where a value is not allowed or two rules of one layer disagree, GraphError where a `nodes`
    selector matches nothing.
    """
    # Many cases are only told apart by the other side's rules, so that this side's settings are equal in them.
    of_holding: dict[tuple[object, ...], Layered] = {}
    of_phase: dict[Case, Layered] = {}
    for phase, below in base.items():
        standing = [faulty for faulty in faults if faulty.rule.holds_in(phase)]
        holding = (id(below), *(rule.holds_in(phase) for layer in layers for rule in layer), *map(id, standing))
        if holding not in of_holding:
            in_phase = [[rule for rule in layer if rule.holds_in(phase)] for layer in layers]
            of_holding[holding] = _settings(graph, below, in_phase, regions, standing)
        of_phase[phase] = of_holding[holding]
    return of_phase


def _settings(
    graph: Graph,
    base: Layered,
    layers: Iterable[Iterable[Rule]],
    regions: Iterable[Region],
    faults: Iterable[FaultyNode],
) -> Layered:
    settings, dormant = dict(base.settings), dict(base.dormant)
    for layer in layers:
        for place, setting in _layer(graph, layer, base.settings.keys()).items():
            standing = settings if place in settings else dormant
            standing[place] = _on_top(setting, standing.get(place))
    for region in regions:
        settings[region.nodes[-1], IMPL] = Setting(value=region.call, rule=region.rule)
    for faulty in faults:
        settings[faulty.node, FAULT] = Setting(value=faulty.text, rule=faulty.rule)
    return Layered(settings, dormant)


def _on_top(setting: Setting, below: Setting | None) -> Setting:
    """A setting on top of the one from lower layers. One made by a fusion keeps that one in `beneath`, since it takes
    effect where the fused kernel is not run.
    """
    if not setting.chain:
        return setting
    return replace(setting, beneath=below if setting.beneath is None else _on_top(setting.beneath, below))


def _layer(graph: Graph, rules: Iterable[Rule], graph_places: Container[Place]) -> dict[Place, Setting]:
    settings: dict[Place, Setting] = {}
    for rule in rules:
        values = list(assignments(graph, rule))
        _refuse_sequences(graph, rule, {node for node, *_ in values})
        _refuse_absent(graph, graph_places, rule, [(node, name) for node, name, *_ in values])
        for node, name, value, chain in values:
            place, earlier = (node, name), settings.get((node, name))
            if place in graph_places:
                _refuse_conflict(place, earlier, rule, value)
            settings[place] = Setting(value=value, rule=rule, chain=chain, beneath=earlier if chain else None)
    return settings


def _refuse_sequences(graph: Graph, rule: Rule, nodes: Container[str]) -> None:
    """Refuse a rule by numbers of keys or queries at ops that do not compute each sequence by itself, as attention
    does.
    """
    blind_node = next((node for node in graph.nodes if node.name in nodes and not node.op.tokens.by_sequence), None)
    if rule.by_sequence and blind_node is not None:
        raise SpecError(
            f"{rule.where}: {rule.label} goes by {listed(OF_ATTENTION)}, and sets a value of "
            f"{blind_node.name}, op {blind_node.op.name}, which sees rows only. Say `rows`, or select attention alone."
        )


def _refuse_absent(graph: Graph, graph_places: Container[Place], rule: Rule, places: Sequence[Place]) -> None:
    """Refuse a `nodes` rule for an attribute that exists on none of its nodes: it would be ignored silently."""
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
    unset += [name for name, values in attribute.when_parameters.items() if not holds({name: values}, node.params)]
    if unset:
        return f"its {unset[0]} is {shown(node.params[unset[0]])}"
    if attribute.without_weight in node.weights:
        return f"it has {attribute.without_weight}"
    return f"it has no {attribute.weight or f'input {attribute.input}'}"


def _refuse_conflict(place: Place, earlier: Setting | None, rule: Rule, value: Value) -> None:
    if earlier is not None and earlier.value != value and earlier.rule is not None:
        narrowed = "phases" if rule.cases or earlier.rule.cases else "selectors"
        raise SpecError(
            f"{rule.where}: {rule.label} sets {place[0]}:{place[1]} to {value!r}, but "
            f"{_other_place(earlier.rule.where, rule)} ({earlier.rule.label}) sets it to {earlier.value!r}. "
            f"Narrow their {narrowed} so that they do not overlap."
        )


def _other_place(where: Where, rule: Rule) -> str:
    return f"line {where.line}" if where.path == rule.where.path and where != rule.where else str(where)
