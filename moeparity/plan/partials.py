"""What a plan's settings imply along the graph's edges.

That is: choices that an op's kernel is passed from other nodes, inputs that are not read, which values consist of
partial sums (one for each rank that holds a part of the op that made them), and sizes of inputs that ops ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass

from moeparity.errors import SpecError
from moeparity.ops.attribute import Value, holds
from moeparity.plan.graph import SOURCES, Graph, Node

ChoicesTold = Mapping[str, Mapping[str, Value]]
"""By node, the choices of other nodes that its kernel is passed (`Op.choices_elsewhere`), by name."""

Partials = Mapping[str, int]
"""By value, the number of partial sums it consists of; 1: it is whole."""


@dataclass(frozen=True, slots=True)
class EarlierPlan:
    """Results of an earlier plan of the same graph (without users' functions), for reuse; `otherwise` are the nodes
    whose settings differ from it.
    """

    otherwise: frozenset[str]
    choices_elsewhere: ChoicesTold
    partials: Partials
    on_whole: frozenset[str]


@dataclass(frozen=True, slots=True)
class Implied:
    """What settings imply along the edges of a graph.

    on_whole: the nodes that read no partial sums. same_nodes: those for which all is as in the earlier plan: their
        settings, the choices they are passed, and their inputs, which are whole.
    """

    choices_elsewhere: ChoicesTold
    partials: Partials
    on_whole: frozenset[str]
    same_nodes: frozenset[str]


class NodeValues(dict[str, Mapping[str, Value]]):
    """By node, the values of its attributes, worked out on first use: for a mixture few are needed."""

    def __init__(self, graph: Graph, values: Callable[[Node], Mapping[str, Value]]) -> None:
        super().__init__()
        self._values = values
        self._nodes = {node.name: node for node in graph.nodes}

    def __missing__(self, name: str) -> Mapping[str, Value]:
        values = self[name] = self._values(self._nodes[name])
        return values


def implied(
    graph: Graph,
    values: Mapping[str, Mapping[str, Value]],
    region_nodes: Container[str],
    earlier_plan: EarlierPlan | None = None,
) -> Implied:
    """What the values set on all nodes imply; `region_nodes` are those whose own kernel is not run.

    Results of `earlier_plan` are reused where nothing has changed. Raises SpecError where a node would read partial
    sums and its op does not take them.
    """
    choices = choices_told(graph, values, earlier_plan)
    counts = partials(graph, values, region_nodes, choices, earlier_plan)
    if earlier_plan is not None and (choices, counts) == (earlier_plan.choices_elsewhere, earlier_plan.partials):
        return Implied(choices, counts, earlier_plan.on_whole, earlier_plan.on_whole - earlier_plan.otherwise)
    # What reads partial sums also depends on their dtype, a choice of the node that makes them: these are never taken
    # over.
    on_whole = (node.name for node in graph.nodes if all(counts[value] == 1 for value in node.inputs))
    return Implied(choices, counts, frozenset(on_whole), frozenset())


def choices_told(
    graph: Graph, values: Mapping[str, Mapping[str, Value]], earlier_plan: EarlierPlan | None = None
) -> ChoicesTold:
    """The choices of other nodes that each kernel is passed, from the values set on all nodes.

    Results of `earlier_plan` are reused where nothing has changed.
    """
    choices: dict[str, dict[str, Value]] = {}
    for node in graph.nodes:
        for name, by in node.op.choices_elsewhere.items():
            ports = dict(zip(node.ports, node.inputs, strict=True))
            maker = _through(graph.makers, ports.get(by.port))
            if earlier_plan is not None and (maker is None or _chooses_alike(maker, earlier_plan, choices)):
                choice = earlier_plan.choices_elsewhere[node.name][name]
            else:
                maker_choices = {} if maker is None else {**choices.get(maker.name, {}), **values[maker.name]}
                choice = maker_choices.get(name, by.default)
            choices.setdefault(node.name, {})[name] = choice
    return choices


def held_otherwise(graph: Graph, ours: ChoicesTold, theirs: ChoicesTold) -> frozenset[str]:
    """The nodes whose values hold other things under two plans: a reader is passed other choices of theirs, such as
    whether rows have met their routing weights yet. Such values can't be compared.
    """
    nodes: set[str] = set()
    for reader in graph.nodes:
        inputs = dict(zip(reader.ports, reader.inputs, strict=True))
        for name, by in reader.op.choices_elsewhere.items():
            if ours[reader.name][name] != theirs[reader.name][name]:
                nodes |= {maker.name for maker in _behind(graph.makers, inputs.get(by.port))}
    return frozenset(nodes)


def _chooses_alike(node: Node, earlier_plan: EarlierPlan, choices: ChoicesTold) -> bool:
    """Whether a node has the same settings as in the earlier plan and is passed the same choices of others."""
    return node.name not in earlier_plan.otherwise and choices.get(node.name) == earlier_plan.choices_elsewhere.get(
        node.name
    )


def _through(makers: Mapping[str, Node], value: str | None) -> Node | None:
    """The node that made a value; all-reduces in between are skipped."""
    *_, maker = (None, *_behind(makers, value))
    return maker


def _behind(makers: Mapping[str, Node], value: str | None) -> Iterator[Node]:
    """The all-reduces that a value came through, last one first, and the node that made it."""
    maker = makers.get(value or "")
    while maker is not None:
        yield maker
        maker = makers.get(maker.inputs[0]) if maker.op.role.reduces else None


def inputs_read(node: Node, values: Mapping[str, Value]) -> tuple[bool, ...]:
    """For each input of a node, whether it is read under these values (its own and those passed from other nodes)."""
    ways = (node.op.reads.get(port) for port in node.ports)
    return tuple(conditions is None or any(holds(way, values) for way in conditions) for conditions in ways)


def partials(
    graph: Graph,
    values: Mapping[str, Mapping[str, Value]],
    region_nodes: Container[str],
    choices: ChoicesTold,
    earlier_plan: EarlierPlan | None = None,
) -> Partials:
    """The number of partial sums of every value of a graph, from the values set on its nodes and the choices they are
    passed.

    A user's function takes and gives whole values; an input that is not read, or that no node of the graph makes,
    counts as whole. Results of `earlier_plan` are reused where nothing has changed.

    Raises SpecError where a node would read partial sums and its op does not take them.
    """
    recounted: set[str] = set()
    if earlier_plan is None:
        counts = dict.fromkeys((*SOURCES, *(value for node in graph.nodes for value in node.inputs)), 1)
        open_nodes = frozenset(node.name for node in graph.nodes)
    else:
        counts, told_before = dict(earlier_plan.partials), earlier_plan.choices_elsewhere
        told_otherwise = {name for name, told_now in choices.items() if told_now != told_before.get(name)}
        open_nodes = earlier_plan.otherwise | told_otherwise
    for node in graph.nodes:
        if node.name not in open_nodes and recounted.isdisjoint(node.inputs):
            continue
        runs_kernel = node.name not in region_nodes
        node_values = values[node.name]
        reads = (True,) * len(node.inputs)
        # A hot path: every node of every mixture that is tried comes here, and few ops have inputs they may not read.
        if runs_kernel and node.op.reads:
            reads = inputs_read(node, {**choices.get(node.name, {}), **node_values})
        inputs = [counts[value] if reads_it else 1 for value, reads_it in zip(node.inputs, reads, strict=True)]
        if any(count > 1 for count in inputs):
            _refuse(node, inputs, node.op.cut.takes_partials if runs_kernel else ())
        count = (
            node.op.cut.partials(node.op.cut.pieces(node_values), node_values, node.params, inputs)
            if runs_kernel
            else 1
        )
        if counts.get(node.values[0]) != count:
            recounted |= {*node.values}
        counts |= dict.fromkeys(node.values, count)
    return counts


def _refuse(node: Node, inputs: list[int], summing_ports: tuple[str, ...]) -> None:
    counts = [count for port, count in zip(node.ports, inputs, strict=True) if port in summing_ports]
    for port, value, count in zip(node.ports, node.inputs, inputs, strict=True):
        if count > 1 and port not in summing_ports:
            raise SpecError(
                f"{node.name} reads {value}, which lies in partial sums over {count} ranks. "
                "Reduce it first: `reduce: now` at the all_reduce before it."
            )
    if len({count for count in counts if count > 1}) > 1:
        raise SpecError(
            f"{node.name} adds partial sums over {' and '.join(str(c) for c in counts)} ranks. "
            "Reduce both first: `reduce: now` at the all_reduce before each."
        )


def sizes(node: Node, makers: Mapping[str, Node], counts: Partials) -> dict[str, tuple[int, ...]]:
    """Numbers that an op may ask for in addition: how many partial sums its result and each input consist of; its own
    parameters that are whole numbers or booleans; the `top_k` of a router that made an input; and the number of heads
    of an input that a node with `heads` made, or passed on unchanged.
    """
    numbers: dict[str, tuple[int, ...]] = {"partials": (counts[node.values[0]],)}
    numbers |= {name: (value,) for name, value in node.params.items() if isinstance(value, int)}
    for port, value in zip(node.ports, node.inputs, strict=True):
        numbers[f"partials of {port}"] = (counts[value],)
        maker = makers.get(value)
        if maker is not None and maker.op.role.routes:
            numbers[port] = (maker.params["top_k"],)
        heads = _heads(maker, value, makers)
        if heads is not None:
            numbers[f"heads of {port}"] = (heads,)
    return numbers


def _heads(maker: Node | None, value: str, makers: Mapping[str, Node]) -> int | None:
    """Into how many heads a value is cut, traced back through ops that keep heads; None where that is not known."""
    while maker is not None and not maker.heads_of(value):
        if not maker.op.cut.keeps_heads:
            return None
        value = maker.inputs[maker.values.index(value)]
        maker = makers.get(value)
    return None if maker is None else maker.heads_of(value)
