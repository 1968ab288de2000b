"""Hypotheses on what is wrong with one side, as faults planted at nodes: coarse ones first, then parts of the best."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moeparity.doctor.kinds import kind_of_folder
from moeparity.doctor.readings import Reading
from moeparity.errors import MoeparityError
from moeparity.ops.attribute import Value
from moeparity.plan.address import role
from moeparity.plan.bound import Plan
from moeparity.plan.changed import with_planted_in
from moeparity.plan.faults.apply import experts_of
from moeparity.plan.faults.fault import Fault, Planted, planted, spelled
from moeparity.plan.faults.plant import candidates, is_possible
from moeparity.plan.faults.reader import shipped_faults
from moeparity.plan.graph import Graph, Node
from moeparity.plan.schedule.cases import Case, parse
from moeparity.plan.schedule.steps import Phase
from moeparity.plan.setting import FAULT, Place, Setting

STALE = "weights-of-another-checkpoint"
STALE_EXPERT = "expert-of-another-checkpoint"
_OF_CHECKPOINT = {"weights": STALE, "scales": "scales-of-another-checkpoint", "amaxes": "amax-of-another-checkpoint"}
_OF_ADAPTER = {"adapter": "adapter-of-another-step"}
_STALE = {**_OF_CHECKPOINT, **_OF_ADAPTER}
"""What may be as it was before the update -> the fault; scales are those of quantised weights, under new codes, amaxes
those by which a side itself rounds a whole tensor to fp8.
"""
_WHOLE_TENSOR: Mapping[str, tuple[tuple[str, Value], ...]] = {"amaxes": (("block", 0),)}
ALL_STALE = {*_STALE.values(), STALE_EXPERT}
"""The faults of what is as it was before the update."""
_WHOLE = {"adapter": "adapter"}
"""How all of a part is called; else `all` stands before it."""
_KINDS = {
    "attention": re.compile(r"\.attention\.(?!norm$)"),
    "routed experts": re.compile(r"\.experts$"),
    "routers": re.compile(r"\.(gate|router)$"),
    "norms": re.compile(r"norm$"),
}
"""Kinds of nodes whose weights a program may leave stale in all layers, by name; the norm before a block is no part of
it.
"""
_ALONE = 1
OF_WEIGHTS = "compare what this side loaded with the checkpoint: `moeparity weights` names each tensor that differs"
"""The advice for weights in another place."""
_BY_ROLE = ("weights-zeroed", "weights-transposed")
"""Faults that are planted at the nodes of one role at a time: a model whose weights are all zero says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """A fault at a node, with its free values. phase: the steps in which it is there; None for all."""

    node: str
    fault: Fault
    values: tuple[tuple[str, Value], ...] = ()
    phase: Phase | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """The open number of a hypothesis. family: the hypothesis without its number. name: that of the number in the
    fault.
    """

    family: str
    name: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """Something that may be wrong with a side; without plants, nothing is wrong with its model.

    name: the one in reports; a part is called by its `kind` and place. says: a clause. change: what to do about it.
    number: the one that a search may change. plainness: of several hypotheses that make the same difference, the one
    with the least is named first. reading: how the side misread the tokens; None if it read what the log says.
    """

    name: str
    says: str
    change: str = ""
    plants: tuple[Plant, ...] = ()
    number: Number | None = None
    plainness: int = 0
    reading: Reading | None = None
    kind: str = ""

    @property
    def family(self) -> str:
        """The name without the number."""
        return self.name if self.number is None else self.number.family

    def applied(self, plan: Plan) -> Plan:
        """The plan with this wrong. Raises SpecError if an op refuses the result."""
        faults: dict[str, tuple[Planted, ...]] = {}
        settings: dict[Case, dict[Place, Setting]] = {phase: {} for phase in plan.phases}
        for phase in plan.phases:
            at: dict[str, tuple[Planted, ...]] = {}
            for plant in self.plants:
                if plant.phase in {None, parse(phase)[0]}:
                    at[plant.node] = (*at.get(plant.node, ()), planted(plant.fault, dict(plant.values)))
            faults |= {spelled(of_node): of_node for of_node in at.values()}
            settings[phase] = {(node, FAULT): Setting(value=spelled(there), rule=None) for node, there in at.items()}
        return with_planted_in(plan, faults, settings)


AS_CONFIGURED = Hypothesis(name="as configured", says="nothing is wrong beyond what the profiles say")


def coarse(graph: Graph, previous: Path | None) -> Iterator[Hypothesis]:
    """The coarse hypotheses: as configured; each fault that leaves nothing open, wherever it is possible. With a
    checkpoint, or an adapter, before the update also stale weights: of each layer, of each kind of node, of each end of
    the model, and of the whole model.
    """
    yield AS_CONFIGURED
    if previous is not None:
        yield from _stale(graph, previous)
    yield from _mistakes(graph)


def parts(of: Hypothesis, graph: Graph, previous: Path | None) -> Iterator[Hypothesis]:
    """Parts of a hypothesis without a number: of several nodes those of one layer, those of one kind, and each alone;
    of one node of experts with stale weights each expert. previous: the folder of the checkpoint, or of the adapter,
    before the update.
    """
    if not of.plants or of.reading is not None or of.number is not None:
        return
    stale = next((part for part, fault in _STALE.items() if fault == of.plants[0].fault.name), "weights")
    stale_as = previous if of.plants[0].fault.name in _STALE.values() else None
    nodes = nodes_of(graph, [plant.node for plant in of.plants])
    if len(nodes) > _ALONE:
        for says, group in groups(nodes):
            yield _at(of, says, group) if stale_as is None else _of_nodes(stale, says, group, stale_as)
    elif stale_as is not None and stale == "weights" and can_have(graph, nodes[0], STALE_EXPERT):
        yield from (stale_expert(nodes[0], expert, stale_as) for expert in range(experts_of(nodes[0])))


def _at(of: Hypothesis, says: str, nodes: Sequence[Node]) -> Hypothesis:
    """The hypothesis at some of its nodes."""
    names = {node.name for node in nodes}
    return replace(
        of,
        name=f"{of.kind or of.name} of {says}",
        says=f"{of.says}, at {says}",
        plants=tuple(plant for plant in of.plants if plant.node in names),
        plainness=of.plainness + 1,
    )


def nodes_of(graph: Graph, names: Iterable[str]) -> list[Node]:
    """The nodes of these names."""
    by_name = {node.name: node for node in graph.nodes}
    return [by_name[name] for name in names]


def groups(nodes: Sequence[Node]) -> Iterator[tuple[str, list[Node]]]:
    """Groups of these nodes that one part of a program computes, each with its name."""
    for says, group in _groups(nodes):
        if len(group) < len(nodes):
            yield says, group


def _groups(nodes: Sequence[Node]) -> Iterator[tuple[str, list[Node]]]:
    layers = sorted({node.layer for node in nodes if node.layer is not None})
    for layer in layers:
        of_layer = [node for node in nodes if node.layer == layer]
        if len(layers) > _ALONE and len(of_layer) > _ALONE:
            yield _of_layer(of_layer, layer), of_layer
    for says, pattern in _KINDS.items():
        of_kind = [node for node in nodes if pattern.search(node.name)]
        if len(of_kind) > _ALONE:
            yield f"{says} of {'all layers' if len(layers) > _ALONE else f'layer {layers[0]}'}", of_kind
    for says in dict.fromkeys(role(node.name) for node in nodes):
        of_role = [node for node in nodes if role(node.name) == says]
        if len(of_role) > _ALONE:
            yield says, of_role
    for node in nodes:
        yield node.name, [node]


def _of_layer(nodes: Sequence[Node], layer: int) -> str:
    """What to call these nodes of a layer: by their kind, if all are of one."""
    says = next((kind for kind, name in _KINDS.items() if all(name.search(node.name) for node in nodes)), None)
    return f"layer {layer}" if says is None else f"{says} of layer {layer}"


def _stale(graph: Graph, previous: Path) -> Iterator[Hypothesis]:
    for part in stale_parts_of(previous):
        nodes = weighted(graph, part)
        for layer in sorted({node.layer for node in nodes if node.layer is not None}):
            yield _of_nodes(part, f"layer {layer}", [n for n in nodes if n.layer == layer], previous)
        for node in (node for node in nodes if node.layer is None):
            yield _of_nodes(part, node.name, [node], previous)
        for says, pattern in _KINDS.items():
            of_kind = [node for node in nodes if pattern.search(node.name)]
            if len(of_kind) > _ALONE:
                yield _of_nodes(part, f"{says} of all layers", of_kind, previous)
        if nodes:
            yield _of_nodes(part, "", nodes, previous)


def stale_parts_of(previous: Path) -> Mapping[str, str]:
    """What may be as it was before the update, with its fault: an adapter, or else weights and scales."""
    return _OF_ADAPTER if kind_of_folder(previous) == "adapter" else _OF_CHECKPOINT


def stale_parts(graph: Graph, previous: Path) -> Iterator[Hypothesis]:
    """Hypotheses of stale weights, scales or adapters of each layer, kind, role and node: the difference of one node
    need not look like that of its layer.
    """
    for part in stale_parts_of(previous):
        for says, group in groups(weighted(graph, part)):
            yield _of_nodes(part, says, group, previous)


def weighted(graph: Graph, part: str = "weights") -> list[Node]:
    """The nodes whose weights, scales or adapters may be those before an update."""
    return [node for node in graph.nodes if node.weights and can_have(graph, node, _STALE[part])]


def _of_nodes(part: str, where: str, nodes: Iterable[Node], previous: Path) -> Hypothesis:
    """`part` (weights, scales or adapter) is stale at these nodes; `where` they are, in words, "" for all."""
    noun = f"{part} of {where}" if where else _WHOLE.get(part, f"all {part}")
    if part in _OF_ADAPTER:
        says = f"has the {noun} as it was in {previous.name}"
        change = "send the adapter again; a server may keep the first one that it loaded under a name"
    else:
        says = f"has {noun} as they were in {previous.name}"
        change = f"send these {part} again, and compare them on both sides: `moeparity weights` names each that differs"
    return Hypothesis(name=f"stale {noun}", says=says, change=change, plants=of_older(part, nodes, previous))


def of_older(part: str, nodes: Iterable[Node], previous: Path, phase: Phase | None = None) -> tuple[Plant, ...]:
    """A part as it was before the update, at some nodes."""
    fault = shipped_faults()[_STALE[part]]
    folders = (name for name, free in fault.free.items() if free.type == "checkpoint")
    values: tuple[tuple[str, Value], ...] = tuple((name, str(previous)) for name in folders)
    values += _WHOLE_TENSOR.get(part, ())
    return tuple(Plant(node=node.name, fault=fault, values=values, phase=phase) for node in nodes)


def stale_expert(node: Node, expert: int, previous: Path) -> Hypothesis:
    """One expert as it was in another checkpoint."""
    plant = Plant(
        node=node.name,
        fault=shipped_faults()[STALE_EXPERT],
        values=(("expert", expert), ("checkpoint", str(previous))),
    )
    return Hypothesis(
        name=f"stale expert {expert} of {node.name}",
        says=f"has expert {expert} of {node.name} as it was in {previous.name}",
        change="send this expert's weights again; is it moved between ranks by load balancing?",
        plants=(plant,),
    )


def can_have(graph: Graph, node: Node, fault: str) -> bool:
    """Whether a fault is possible at a node, and changes something there."""
    return is_possible(shipped_faults()[fault], graph, node)


def _mistakes(graph: Graph) -> Iterator[Hypothesis]:
    """One hypothesis for each fault that has no open value: it is planted at all nodes where it changes something. Of
    zeroed and transposed weights there is one for each role of nodes, such as all q_proj.
    """
    nodes_by_fault: dict[tuple[str, str], list[Node]] = {}
    for node in graph.nodes:
        for fault in candidates(graph, node):
            if all(free.default is not None for free in fault.free.values()):
                of = role(node.name) if fault.name in _BY_ROLE else ""
                nodes_by_fault.setdefault((fault.name, of), []).append(node)
    for (name, of), nodes in nodes_by_fault.items():
        fault = shipped_faults()[name]
        plants = tuple(Plant(node=node.name, fault=fault) for node in nodes)
        defaults = {value: free.default for value, free in fault.free.items()}
        says = f"computes as if {fault.spec.says.format_map(defaults)}"
        yield Hypothesis(
            name=f"{name} of {of}" if of else name,
            says=f"{says}, at {of}" if of else says,
            change=f"look for {name} (docs/faults.md) in this side's model code and configuration",
            plants=plants,
            kind=name,
        )


def scales_of_one_layer(graph: Graph) -> Iterator[Hypothesis]:
    """Each mistake with the scales of quantised weights in one layer alone, whose difference need not look like that of
    the same mistake in all layers.
    """
    for each in _mistakes(graph):
        if each.plants[0].fault.spec.sits.quantised:
            nodes = nodes_of(graph, [plant.node for plant in each.plants])
            for layer in sorted({node.layer for node in nodes if node.layer is not None}):
                of_layer = [node for node in nodes if node.layer == layer]
                yield _at(each, _of_layer(of_layer, layer), of_layer)


def runnable(hypotheses: Iterable[Hypothesis], plan: Plan) -> dict[str, Plan]:
    """By name, the plans of the hypotheses that can be run; an op refuses some combinations of choices."""
    plans: dict[str, Plan] = {}
    for hypothesis in hypotheses:
        try:
            plans[hypothesis.name] = hypothesis.applied(plan)
        except MoeparityError:
            continue
    return plans
