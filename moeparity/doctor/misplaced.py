"""Weights, or their scales, that stand in another place: those of a neighbouring layer; experts in another order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moeparity.doctor.hypotheses import OF_WEIGHTS, Hypothesis, Plant, can_have
from moeparity.ops.attribute import Value
from moeparity.plan.faults.apply import experts_of, sibling
from moeparity.plan.faults.reader import shipped_faults
from moeparity.plan.graph import Graph, Node

_OF_LAYER = {"weights": "weights-of-another-layer", "scales": "scales-of-another-layer"}
"""What may be another layer's -> the fault; scales are those of quantised weights."""
_PERMUTED = "experts-permuted"
_RANKS = (2, 4, 8)
"""Numbers of ranks over which a placement may deal its experts."""
_PAIR = 2
_MOST_NODES = 100
"""If more nodes than this have weights, only whole layers are tried; the parts of the best follow."""


def misplaced(graph: Graph) -> Iterator[Hypothesis]:
    """Each layer, and in a small model each node, with the weights of a neighbouring layer, or with its scales; all of
    them with those of the layer before, or of the one behind; experts in other orders.
    """
    for of in _OF_LAYER:
        yield from _of_layers(graph, of)
        yield from _of_all(graph, of)
    yield from _permuted(graph)


def _of_layers(graph: Graph, of: str) -> Iterator[Hypothesis]:
    nodes = [n for n in graph.nodes if n.layer is not None and can_have(graph, n, _OF_LAYER[of])]
    for layer in sorted({node.layer for node in nodes if node.layer is not None}):
        for source in (layer - 1, layer + 1):
            of_layer = [n for n in nodes if n.layer == layer and _is_there(graph, n, source)]
            if len(of_layer) > 1:
                yield _hypothesis(of, f"layer {layer}", of_layer, source)
            if len(nodes) <= _MOST_NODES:
                yield from (_hypothesis(of, node.name, [node], source) for node in of_layer)


def _of_all(graph: Graph, of: str) -> Iterator[Hypothesis]:
    """A number of layers that is off by one; of two layers only one has a neighbour on that side."""
    if graph.whole.layers <= _PAIR:
        return
    fault = shipped_faults()[_OF_LAYER[of]]
    for side, step in (("before", -1), ("behind", 1)):
        plants = [
            Plant(node=node.name, fault=fault, values=(("layer", node.layer + step),))
            for node in graph.nodes
            if node.layer is not None
            and can_have(graph, node, fault.name)
            and _is_there(graph, node, node.layer + step)
        ]
        if plants:
            words = f"{of} of the layer {side} in every layer that has one there"
            yield Hypothesis(name=words, says=f"has the {words}", change=OF_WEIGHTS, plants=tuple(plants), plainness=1)


def _is_there(graph: Graph, node: Node, layer: int) -> bool:
    return 0 <= layer < graph.whole.layers and sibling(graph, node, layer) is not None


def _hypothesis(of: str, where: str, nodes: Sequence[Node], source: int) -> Hypothesis:
    fault = shipped_faults()[_OF_LAYER[of]]
    return Hypothesis(
        name=f"{of} of layer {source} in {where}",
        says=f"has the {of} of layer {source} in {where}",
        change=OF_WEIGHTS,
        plants=tuple(Plant(node=node.name, fault=fault, values=(("layer", source),)) for node in nodes),
        plainness=1,
    )


def _permuted(graph: Graph) -> Iterator[Hypothesis]:
    """All experts of the model, or of one layer, in another order."""
    nodes = [node for node in graph.nodes if can_have(graph, node, _PERMUTED)]
    counts = {experts_of(node) for node in nodes}
    if len(counts) != 1:
        return
    fault = shipped_faults()[_PERMUTED]
    for name, order in orders(counts.pop()):
        values: tuple[tuple[str, Value], ...] = (("order", " ".join(map(str, order))),)
        yield Hypothesis(
            name=f"experts {name}",
            says=f"has its experts {name}: in the first places those of {', '.join(map(str, order[:4]))}",
            change=f"{OF_WEIGHTS}; look at the map from experts to their places",
            plants=tuple(Plant(node=node.name, fault=fault, values=values) for node in nodes),
            plainness=1,
        )


def orders(experts: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Orders in which experts come to lie by mistake, each with its name: turned, backwards, dealt to ranks in turn and
    read as if in blocks, or the other way round. An order says which expert stands in each place; no order comes twice.
    """
    numbers = tuple(range(experts))
    every: dict[tuple[int, ...], str] = {numbers: ""}
    every.setdefault((*numbers[1:], 0), "one place before")
    every.setdefault((numbers[-1], *numbers[:-1]), "one place behind")
    for ranks in (ranks for ranks in _RANKS if experts % ranks == 0):
        block = experts // ranks
        dealt = tuple(e for rank in range(ranks) for e in numbers[rank::ranks])
        gathered = tuple(dealt.index(e) for e in numbers)
        every.setdefault((*numbers[block:], *numbers[:block]), f"one rank of {ranks} before")
        every.setdefault((*numbers[-block:], *numbers[:-block]), f"one rank of {ranks} behind")
        every.setdefault(dealt, f"dealt in turn to {ranks} ranks, read as blocks")
        every.setdefault(gathered, f"in blocks of {ranks} ranks, read as dealt in turn")
    every.setdefault(numbers[::-1], "backwards")
    yield from ((name, order) for order, name in every.items() if name)
