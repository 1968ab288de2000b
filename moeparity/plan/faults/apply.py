"""A fault applied to one node: the node as it is then run.

Where a fault only takes other tensors (another layer's, another expert's, another port's), the weight's names are
changed, and these tensors are read from the checkpoint like any others. Everything else (`Part.edits`) is done to each
tensor when it is read, before it is stacked or cast. Nothing is loaded here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from moeparity.plan.address import role
from moeparity.plan.edits import Before, Edit, Part, ScaleVerb
from moeparity.plan.faults.fault import Fault, Planted, Values
from moeparity.plan.graph import Graph, Node, WeightRef
from moeparity.plan.spec.fault_schema import InputEdit, WeightEdit


def applied(graph: Graph, node: Node, plants: Sequence[Planted]) -> Node:
    """The node with these faults applied in order; the same object where they change nothing."""
    result = node
    for plant in plants:
        result = _applied(graph, result, plant)
    return node if result.computation == node.computation else result


def sits_at(fault: Fault, graph: Graph, node: Node) -> bool:
    """Whether a fault's file allows it at a node; whether it would change anything there is not checked."""
    sits = fault.spec.sits
    name = node.name.rpartition(".")[2]
    fits_name = (sits.node is None or name in sits.node) and name not in sits.without
    quantised = graph.config.get("quantization_config")
    if (sits.quantised and not quantised) or (sits.two_levels and "nvfp4" not in str(quantised).lower()):
        return False
    return node.op.name in sits.op and fits_name and (sits.model_type is None or graph.model_type in sits.model_type)


def _applied(graph: Graph, node: Node, plant: Planted) -> Node:
    values = dict(plant.values)
    weights = _weights(graph, node, plant, values)
    return replace(
        node,
        params=_params(node, plant, values),
        weights=weights,
        own_weights=node.own_weights and weights == node.weights,
        edits=(*node.edits, *_edits(node, plant, values)),
    )


def _value(reference: Any, values: Values) -> Any:
    """What a reference stands for."""
    return values[reference[1:]] if isinstance(reference, str) and reference.startswith("$") else reference


def exchanged_experts(fault: Fault, values: Values) -> tuple[int, int] | None:
    """The two experts that have each other's weights under a fault with these values; None if it exchanges none."""
    edit = next((edit for edit in fault.spec.rewrite.weights.values() if edit.exchanged is not None), None)
    return None if edit is None else (int(_value(edit.expert, values)), int(_value(edit.exchanged, values)))


def _params(node: Node, plant: Planted, values: Values) -> dict[str, Any]:
    params = dict(node.params)
    for name, edit in plant.fault.spec.rewrite.params.items():
        parameter, _, key = name.partition(".")
        holder = params.get(parameter) if key else params
        changed = key or parameter
        # A key that the mapping lacks is read by nobody, so it is not added.
        if holder is None or changed not in holder:
            continue
        value = not holder[changed] if edit.flipped else _value(edit.value, values)
        params[parameter] = {**holder, key: value} if key else value
    return params


def _edits(node: Node, plant: Planted, values: Values) -> Iterator[Edit]:
    rewrite = plant.fault.spec.rewrite
    for port, edit in rewrite.inputs.items():
        if port in node.ports:
            yield from _before(port, edit, values)
    effect, result = rewrite.effect, rewrite.result
    if effect is not None and effect.left_out is not None:
        yield Edit(subject="effect", verb="left_out", port=effect.left_out)
    if effect is not None and effect.twice is not None:
        yield Edit(subject="effect", verb="twice", port=effect.twice)
    if result is not None and result.divided is not None:
        yield Edit(subject="result", verb="divided", number=_value(result.divided, values))
    if result is not None and result.capacity is not None:
        yield Edit(subject="result", verb="capacity", number=_value(result.capacity, values))
    if result is not None and result.experts is not None and _value(result.experts, values) < node.params["top_k"]:
        yield Edit(subject="result", verb="experts", number=_value(result.experts, values))
    if rewrite.state is not None and node.op.tokens.state is not None:
        yield Edit(subject="state", verb=rewrite.state)


def _before(port: str, edit: InputEdit, values: Values) -> Iterator[Edit]:
    if edit.of is not None:
        yield Edit(subject="input", verb="of", port=port, other_port=edit.of)
    verbs: tuple[tuple[Before, Any], ...] = (
        ("plus", edit.plus), ("shifted", edit.shifted), ("filled", edit.filled), ("opened", edit.opened),
    )  # fmt: skip
    for verb, number in verbs:
        if number is not None:
            yield Edit(subject="input", verb=verb, port=port, number=_value(number, values))


def _weights(graph: Graph, node: Node, plant: Planted, values: Values) -> Mapping[str, WeightRef]:
    weights: dict[str, WeightRef] = {}
    edits = plant.fault.spec.rewrite.weights
    beside = {port.name for port in node.op.weights if port.beside}
    for port, ref in node.weights.items():
        edit = edits.get(port, None if port in beside else edits.get("*"))
        if edit is None or not _concerns(plant, edit, port, values):
            weights[port] = ref
        elif not edit.absent:
            weights[port] = _weight(graph, node, port, edit, values)
    return node.weights if _tears(node, weights) else weights


def _concerns(plant: Planted, edit: WeightEdit, port: str, values: Values) -> bool:
    """Whether an edit applies to the weight at this port."""
    if edit.part is None or values[edit.part[1:]] == plant.fault.free[edit.part[1:]].default:
        return True
    return port in ports_of(str(values[edit.part[1:]]))


def ports_of(part: str) -> tuple[str, ...]:
    """The weight ports named by a free value of type `part`, such as `gate and up`."""
    return tuple(part.split(" and "))


def _tears(node: Node, weights: Mapping[str, WeightRef]) -> bool:
    """Whether a fault would edit only a part of a tensor that several weights share, as gate and up do in some
    checkpoints.
    """
    stacks: dict[str | None, set[object]] = {}
    for port in node.op.weights:
        if port.name in node.weights and node.weights[port.name].stacked is not None:
            ref = weights.get(port.name)
            stacks.setdefault(port.stack, set()).add(None if ref is None else ref.parts)
    return any(len(parts) > 1 for parts in stacks.values())


def _weight(graph: Graph, node: Node, port: str, edit: WeightEdit, values: Values) -> WeightRef:
    ref, whole_parts = node.weights[port], node.weights[port].pieces
    parts = list(_source(graph, node, port, edit, values))
    if edit.exchanged is not None:
        a, b = _value(edit.expert, values), _value(edit.exchanged, values)
        parts[a], parts[b] = parts[b], parts[a]
    if edit.from_expert is not None:
        parts = [parts[_value(edit.from_expert, values)]] * len(parts)
    verbs = ("times", edit.times), ("filled", edit.filled), ("transposed", edit.transposed or None), ("fp8", edit.fp8)
    for verb, number in verbs:
        if number is not None:
            done = (verb, float(_value(number, values)))
            # Filling overwrites the tensor, so earlier edits are dropped.
            before = [() if verb == "filled" else part.edits for part in parts]
            parts = [replace(part, edits=(*edits, done)) for part, edits in zip(parts, before, strict=True)]  # type: ignore[arg-type]
    if edit.amax_checkpoint is not None:
        parts = [replace(part, amax=str(_value(edit.amax_checkpoint, values))) for part in parts]
    parts = list(_rescaled(graph, node, port, parts, edit, values))
    if edit.expert is not None:
        only = {_value(edit.expert, values), _value(edit.exchanged, values)}
        parts = [
            part if expert in only else before
            for expert, (part, before) in enumerate(zip(parts, whole_parts, strict=True))
        ]
    return ref if tuple(parts) == whole_parts else replace(ref, parts=tuple(parts))


def _rescaled(
    graph: Graph, node: Node, port: str, parts: Sequence[Part], edit: WeightEdit, values: Values
) -> Iterator[Part]:
    """The parts with other scales, if the edit changes those."""
    others: Sequence[Part] = parts
    if edit.scales_layer is not None:
        maker = sibling(graph, node, int(_value(edit.scales_layer, values)))
        others = node.weights[port].pieces if maker is None else maker.weights[port].pieces
    for part, source in zip(parts, others, strict=True):
        scales: list[tuple[ScaleVerb, str | float]] = [] if edit.scales is None else [(edit.scales, "")]
        scales += [("of", source.name)] if source.name != part.name else []
        if edit.scales_checkpoint is not None:
            scales.append(("checkpoint", str(_value(edit.scales_checkpoint, values))))
        scales += [] if edit.scales_times is None else [("times", float(_value(edit.scales_times, values)))]
        scales += [] if edit.scales_block is None else [("block", int(_value(edit.scales_block, values)))]
        yield replace(part, scales=(*part.scales, *scales))


def _source(graph: Graph, node: Node, port: str, edit: WeightEdit, values: Values) -> Sequence[Part]:
    """The tensors a weight is made of: the node's own, except where the edit names another layer, node, port, order or
    checkpoint.
    """
    maker: Node | None = node
    if edit.layer is not None:
        maker = sibling(graph, node, int(_value(edit.layer, values)))
    if edit.node is not None:
        maker = _like(graph, node, port, edit.node)
    if maker is None or port not in maker.weights:
        return node.weights[port].pieces
    parts: Sequence[Part] = maker.weights[port].pieces
    if edit.of is not None and edit.of in maker.weights:
        if node.weights[port].stacked is not None:
            whole_verb = "row_halves" if node.weights[port].outputs_first else "halves"
            verb = "pairs" if node.params.get("interleaved") else whole_verb
            parts = [replace(part, edits=(*part.edits, (verb, 0.0))) for part in parts]  # type: ignore[arg-type]
        elif maker.weights[edit.of].shape == node.weights[port].shape:
            parts = maker.weights[edit.of].pieces
    if edit.order is not None:
        parts = [parts[int(expert)] for expert in str(_value(edit.order, values)).split()]
    if edit.checkpoint is not None:
        parts = [replace(part, checkpoint=str(_value(edit.checkpoint, values))) for part in parts]
    return parts


def _like(graph: Graph, node: Node, port: str, name: str) -> Node | None:
    """The node of a name whose weight at a port has the same shape; None where there is none."""
    of_name = (source for source in graph.whole.nodes if source.name == name and port in source.weights)
    return next((source for source in of_name if source.weights[port].shape == node.weights[port].shape), None)


def sibling(graph: Graph, node: Node, layer: int) -> Node | None:
    """The node of the same role in another layer, with weights of the same shapes; None where there is none."""
    shapes = {port: (ref.shape, ref.stacked, ref.count) for port, ref in node.weights.items()}
    for sibling_node in graph.whole.nodes:
        if sibling_node.layer == layer and role(sibling_node.name) == role(node.name):
            theirs = {port: (ref.shape, ref.stacked, ref.count) for port, ref in sibling_node.weights.items()}
            return sibling_node if theirs == shapes else None
    return None


def experts_of(node: Node) -> int:
    """How many experts a node has weights of; 0 where it has none."""
    return max((ref.count for ref in node.weights.values() if ref.each), default=0)
