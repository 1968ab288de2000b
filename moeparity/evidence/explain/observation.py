"""What a program was seen to compute, under the names of a graph's values, and which nodes lie between the values that
were seen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from moeparity.errors import TraceError, listed
from moeparity.evidence.alignment.rows import last_tokens
from moeparity.evidence.alignment.tokens import Tokens
from moeparity.evidence.explain.sample import Sample
from moeparity.plan.bound import Plan
from moeparity.plan.graph import Node
from moeparity.plan.schedule.cases import Case
from moeparity.plan.schedule.steps import FORWARD
from moeparity.plan.setting import edges_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observation:
    """What a program computed in one forward: the recorded values by their names in a graph, each whole, [B, T, ...].

    phase: what a server was doing in this forward, such as decoding.

    real: which tokens are no padding, bool [B, T]; None if all are taken to be real. tokens: which sequences these are
    of; None if that is not known. earlier: the steps before this one whose keys it reads, row i on row i, the first
    step first. number: which of the trace's forwards it is. unknown: why its mask or its positions are not known.
    other_shapes: in words, values of which a token has another shape than the checkpoint says; such a value is among
    `values` only if what reads it takes any number.
    """

    values: Mapping[str, Tensor]
    other_shapes: Mapping[str, str] = field(default_factory=dict)
    phase: Case = FORWARD
    real: Tensor | None = None
    tokens: Tokens | None = None
    earlier: tuple[Observation, ...] = ()
    number: int = 0
    unknown: str = ""

    def sample(self, region: tuple[Node, ...], earlier: tuple[Sample, ...] = ()) -> Sample:
        """What enters a region of nodes here, and what its last node gave. `earlier` are the steps before it.

        If the last node saw only the last tokens of each sequence, as a head does and what is behind it, only these
        tokens enter. Raises TraceError if a node of the region mixes tokens.
        """
        closing = region[-1]
        recorded = recorded_nodes(region, self.values)
        own_values = (value for node in region if node.name in recorded for value in node.values)
        entering = {v: self.values[v] for v in (*entering_values(region), *own_values) if v in self.values}
        outputs = tuple(self.values[value] for value in closing.values if value in self.values)
        real = self.real if self.real is None or not bool(self.real.all()) else None
        places = None
        shown_tokens = outputs[0].shape[closing.op.tokens.axis] if outputs else 0
        if outputs and "tokens" in self.values and shown_tokens < self.values["tokens"].shape[1]:
            if any(node.op.tokens.mixes for node in region):
                raise TraceError(
                    f"{closing.name}: the trace has the last {shown_tokens} tokens of each sequence alone."
                )
            size = self.values["tokens"].shape
            places = last_tokens(self.tokens or Tokens(tuple(size), ()), shown_tokens)
            rows = places[0]
            entering = {
                value: tensor if tensor.shape[1] == shown_tokens else tensor[:, rows]
                for value, tensor in entering.items()
            }
            real = None if real is None else real[:, rows]
        at = None if real is None else (real, closing.op.tokens.axis)
        return Sample(
            values=entering,
            results=outputs,
            phase=self.phase,
            real=at,
            earlier=earlier,
            number=self.number,
            tokens=self.tokens,
            places=places,
        )


def numbers(steps: Iterable[Observation]) -> tuple[int, ...]:
    """Of which forwards these steps are; several requests of a server's step are of one."""
    return tuple(dict.fromkeys(step.number for step in steps))


def entering_values(region: Sequence[Node]) -> tuple[str, ...]:
    """The values that nodes read and none of them makes."""
    inside = {value for node in region for value in node.values}
    return tuple(dict.fromkeys(value for node in region for value in node.inputs if value not in inside))


def recorded_nodes(region: Sequence[Node], values: Collection[str]) -> frozenset[str]:
    """The nodes before a region's last one whose values the program recorded. Each is there only for what it hands to
    one reader before it is rounded and stored.
    """
    return frozenset(node.name for node in region[:-1] if all(value in values for value in node.values))


def region_of(plan: Plan, name: str, values: Collection[str]) -> tuple[Node, ...]:
    """The nodes that lie between a node's values and the values seen before it, in execution order. They are nodes of
    its segment, and nodes of no layer without weights, such as the table of the rotation.

    A node may read a value only under other choices than the plan's. Such a value belongs to the region if it was seen;
    if not, it is not missed. What a node may hand to a single consumer before it is stored was not seen, though what it
    stored was: the node belongs to the region if what it is made of was seen, or if the plan has it so.

    Raises TraceError if the node's own values were not all seen, or if something that it needs was not.
    """
    segment = next(segment for segment in plan.graph.segments if any(node.name == name for node in segment.nodes))
    shared = (node for node in plan.graph.nodes if node.layer is None and not node.weights)
    handing = [node for node in plan.graph.nodes if _hands_unstored(plan, node, name, values)]
    nodes = {node.name: node for node in (*shared, *segment.nodes, *(node for node in handing if not node.weights))}
    makers = {value: node for node in nodes.values() for value in node.values}
    unstored = {node.values[0] for node in handing if node.name in nodes}
    missing = [value for value in nodes[name].values if value not in values]
    region, waiting = dict[str, None](), [nodes[name]]
    while waiting and not missing:
        node = waiting.pop()
        region[node.name] = None
        for value in filter(None, plan.read_inputs(node)):
            is_shown = value in values and not (node.name == name and value in unstored)
            if is_shown or (value in makers and makers[value].name in region):
                continue
            if value in makers:
                waiting.append(makers[value])
            else:
                missing.append(value)
    if missing:
        raise TraceError(f"{name}: the trace has no whole {listed(sorted(missing))}, which its kernels need.")
    return tuple(node for node in plan.graph.nodes if node.name in region)


def _hands_unstored(plan: Plan, node: Node, reader: str, values: Collection[str]) -> bool:
    """Whether `reader` may be handed a node's result before it is rounded and stored. It is so if the plan says it; it
    may be so if everything that the node reads was recorded, so that the node can be computed again.
    """
    if not any(consumer == reader for _, consumer in edges_of(plan.graph, node)):
        return False
    return reader in plan.edges(node) or all(value in values for value in filter(None, plan.read_inputs(node)))
