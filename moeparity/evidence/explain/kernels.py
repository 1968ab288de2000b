"""Kernels called again on inputs that were met, under other choices."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import is_
from typing import Final

import torch
from torch import Tensor

from moeparity.engine.computation import CallInputs, op_numerics
from moeparity.errors import SpecError
from moeparity.evidence.explain.faults import PLANTED, every_expert, order_of, ordered, suspects_of
from moeparity.evidence.explain.price import call_price, rewriting_price
from moeparity.evidence.explain.replaced import Choices, Replaced
from moeparity.evidence.explain.sample import Ports, Sample, Values, with_earlier
from moeparity.inputs.weights.loaded import Loaded
from moeparity.ops.attribute import EDGE
from moeparity.ops.log_probs import UNROUNDED
from moeparity.plan.bound import Plan
from moeparity.plan.faults.apply import experts_of
from moeparity.plan.graph import Node
from moeparity.plan.setting import Place

Part = tuple[Ports | None, int]
"""What a node reads at one port of each step, the first first (None: it does not), and the axis of tokens there."""

KEPT: Final = 1 << 24
"""Bytes of what nodes gave in the last trials that are kept."""


class UnreadError(SpecError):
    """A node would read a value that the trace lacks, under the choices that are tried: nothing is known of these
    choices, so they are neither explained nor refused.
    """


@dataclass(slots=True)
class Kernels:
    """Calls the kernels of the replaced nodes again. `calls` counts the calls; `work` adds up their cost (a small call
    costs 1).

    What no choice of a trial touches is computed once for each micro-batch. What a trial has in common with the trials
    just before it is not computed again.
    """

    replaced: Replaced
    loaded: Loaded = field(default_factory=Loaded)
    calls: int = 0
    work: float = 0.0
    _base: dict[int, tuple[Sample, dict[str, Tensor]]] = field(default_factory=dict)
    _inner: dict[tuple[object, ...], dict[str, Tensor]] = field(default_factory=dict)
    _bytes_taken: int = 0

    def let_go(self) -> None:
        """Forget what was computed."""
        self._base.clear()
        self._inner.clear()
        self._bytes_taken = 0
        self.replaced.let_go()

    def values(self, choices: Choices, sample: Sample) -> Values:
        """All values of the nodes with these choices, those on edges too. Raises SpecError where an op refuses them."""
        base = self._base_values(sample)
        if base and not choices:
            return base
        plan = self.replaced.bound(choices).at_phase(sample.phase)
        return self._walked(plan, choices, sample, base)

    def _base_values(self, sample: Sample) -> Values:
        """The values without any choice; none where an op refuses that."""
        if id(sample) not in self._base:
            try:
                values = self._walked(self.replaced.plan.at_phase(sample.phase), frozenset(), sample, {})
            except SpecError:
                values = {}
            self._base[id(sample)] = sample, values
        return self._base[id(sample)][1]

    def outputs(self, choices: Choices, sample: Sample) -> Ports | None:
        """What the nodes give with these choices, whole; None where an op refuses them."""
        try:
            return self.computed(choices, sample)
        except SpecError:
            return None

    def computed(self, choices: Choices, sample: Sample) -> Ports:
        """What the nodes give with these choices, whole, at tokens that are no padding. Raises SpecError if an op
        refuses the choices, UnreadError if a node reads something that was not recorded.
        """
        return sample.at_real(self.with_padding(choices, sample))

    def with_padding(self, choices: Choices, sample: Sample) -> Ports:
        """What the nodes give with these choices at all tokens. Raises as `computed` does."""
        values, plan = self.values(choices, sample), self.replaced.bound(choices).at_phase(sample.phase)
        tail = self.replaced.tail
        if tail is not None and _touches(choices, tail):
            # Logits that nobody rounds are compared in the dtype in which the function gives them.
            unrounded = plan.active(tail)["form"] == UNROUNDED
            return (values[tail.name].to(sample.results[0].dtype) if unrounded else values[tail.name],)
        return tuple(_whole(values[value], plan.partials[value]) for value in self.replaced.nodes[-1].values)

    def suspects(self, sample: Sample, choices: Choices) -> tuple[int, ...]:
        """The experts whose mistake may be why the recorded output has other bits than these choices give."""
        base, ids = self.outputs(choices, sample), self.ids(sample, choices)
        return () if base is None or ids is None else suspects_of(sample.compared[0], base[0], ids)

    def order(self, sample: Sample, choices: Choices) -> Place | None:
        """The order of experts in which, beside these choices, every row is as it was given; None where none is."""
        closing, ids = self.replaced.nodes[-1], self.ids(sample, choices)
        if closing is not self._experts() or ids is None:
            return None
        recorded, rows = sample.compared[0], dict[int, Tensor]()
        for expert in range(experts_of(closing)):
            trial = self.outputs(choices | {(every_expert(closing, expert), PLANTED)}, sample)
            if trial is None or trial[0].shape != recorded.shape or trial[0].dtype != recorded.dtype:
                return None
            rows[expert] = trial[0]
        order = order_of(recorded, rows, ids)
        return None if order is None else ordered(closing, order)

    def _experts(self) -> Node | None:
        """The node among these whose rows are those of experts."""
        return next((node for node in self.replaced.nodes if node.op.role.slot_order and experts_of(node)), None)

    def ids(self, sample: Sample, choices: Choices) -> Tensor | None:
        """The experts of each token's slots; None where these nodes have none, or do not run."""
        node = self._experts()
        if node is None:
            return None
        try:
            return sample.at_real([self.values(choices, sample)[node.inputs[node.ports.index("ids")]]])[0]
        except SpecError:
            return None

    def kept_by(self, choices: Choices, sample: Sample) -> Values:
        """What later steps read of a step: the keys and values that these nodes make. Raises SpecError."""
        return {value: self._of_step(choices, sample, value)[value] for value in self.replaced.history}

    def read_by(self, node: Node, choices: Choices, sample: Sample, values: Values) -> list[Tensor | None]:
        """What a node reads with these choices, of earlier steps too; `values` are those of this one."""
        plan = self.replaced.bound(choices).at_phase(sample.phase)
        return [_joined(read, axis) for read, axis in self._parts(plan, choices, sample, values, node)]

    def _parts(self, plan: Plan, choices: Choices, sample: Sample, values: Values, node: Node) -> list[Part]:
        """For each input of a node its values, one for each step, and the axis along which their tokens lie; None for
        an input that the node does not read here.
        """
        parts: list[Part] = []
        if node.op.tokens.state is not None and sample.earlier:
            raise UnreadError(f"{node.name}: the state that earlier steps left is not recorded.")
        for port, value in zip(node.ports, plan.read_inputs(node), strict=True):
            read = _handed(values, value, node)
            if value is not None and read is None:
                raise UnreadError(f"{node.name}: {value} is not known.")
            earlier = sample.earlier if read is not None and port in node.op.tokens.history else ()
            before = [_handed(self._of_step(choices, step, value or ""), value, node) for step in earlier]
            tensors = tuple(part for part in (*before, read) if part is not None)
            parts.append((tensors or None, node.op.tokens.input_axes.get(port, 1)))
        return parts

    def _of_step(self, choices: Choices, step: Sample, value: str) -> Values:
        """The values of an earlier step that one of them is made of, and it. Raises UnreadError."""
        if value in step.values:
            return step.values
        if value not in self.replaced.made_of:
            raise UnreadError(f"{value} of an earlier step is not known.")
        plan = self.replaced.bound(choices).at_phase(step.phase)
        return self._walked(plan, choices, step, {}, self.replaced.made_of[value])

    def _walked(
        self, plan: Plan, choices: Choices, sample: Sample, base: Values, only: Collection[str] | None = None
    ) -> dict[str, Tensor]:
        """All values of the nodes (or `only` of these), those on edges too; `base` holds them without the choices."""
        tail = self.replaced.tail
        walks_tail = tail is not None and _touches(choices, tail)
        values, own_plan, before = dict(sample.values), self.replaced.plan.at_phase(sample.phase), set[str]()
        for node in self.replaced.all_nodes if walks_tail else self.replaced.nodes:
            before.add(node.name)
            if node.name in self.replaced.recorded and not plan.edges(node):
                continue
            if only is not None and node.name not in only:
                continue
            parts = self._parts(plan, choices, sample, values, node)
            names = (*node.values, *(f"{node.values[0]}{EDGE}{reader}" for reader in plan.edges(node)))
            if _untouched(plan, own_plan, choices, node) and self._reads_same(parts, base, node, own_plan, sample):
                values |= {name: base[name] for name in names}
                continue
            told_choices = sorted(plan.told_to(node).items())
            key = (
                id(sample),
                node.name,
                frozenset(choice for choice in choices if choice[0][0] in before),
                *told_choices,
            )
            if key not in self._inner:
                spans = (
                    sample.spans if node.op.tokens.state is not None or node.op.tokens.varlen(plan.active(node)) else ()
                )
                self._keep(key, self._computed_in(spans, plan, node, choices, parts))
            values |= self._inner[key]
            # What is known stays: a wrong sum is not said of the norm that reads it.
            values |= {name: sample.values[name] for name in node.values if node.name in self.replaced.recorded}
        return values

    def _reads_same(self, parts: Sequence[Part], base: Values, node: Node, own_plan: Plan, sample: Sample) -> bool:
        """Whether a node reads the very tensors that it reads without any choice, and made something of them."""
        if node.values[0] not in base:
            return False
        without = self._parts(own_plan, frozenset(), sample, base, node)
        return all(map(_same_tensors, parts, without))

    def _computed_in(
        self, spans: Sequence[tuple[int, int]], plan: Plan, node: Node, choices: Choices, parts: Sequence[Part]
    ) -> dict[str, Tensor]:
        """The values of a node with these choices; in these spans of a row, each sequence is computed by itself."""
        reads = [_joined(part, axis) for part, axis in parts]
        if not spans:
            return self._computed_at(plan, node, choices, reads)
        values = [
            self._computed_at(
                plan, node, choices, [_cut(x, axis, span) for x, (_, axis) in zip(reads, parts, strict=True)]
            )
            for span in spans
        ]
        return {name: torch.cat([of_span[name] for of_span in values], node.op.tokens.axis) for name in values[0]}

    def _computed_at(
        self, plan: Plan, node: Node, choices: Choices, reads: Sequence[Tensor | None]
    ) -> dict[str, Tensor]:
        """The values of a node with these choices, those on edges too."""
        as_run = plan.as_run(node)
        chosen = replace(as_run, params=self.replaced.params(as_run, choices))
        values = dict(zip(node.values, self._call(plan, chosen, {}, reads), strict=True))
        for reader, site in plan.edges(node).items():
            values[f"{node.values[0]}{EDGE}{reader}"] = self._call(plan, chosen, dict([site]), reads)[0]
        return values

    def _keep(self, key: tuple[object, ...], values: dict[str, Tensor]) -> None:
        """Keep what a node gave, and of others the latest that take no more than `KEPT` together."""
        self._inner[key] = values
        self._bytes_taken += _bytes(values)
        while self._bytes_taken > KEPT and len(self._inner) > 1:
            self._bytes_taken -= _bytes(self._inner.pop(next(iter(self._inner))))

    def _call(self, plan: Plan, node: Node, rounded: Mapping[str, object], reads: Sequence[Tensor | None]) -> Ports:
        self.calls += 1
        entering = next(x for x in reads if x is not None)
        chosen = next((x.shape[2] for x in reads if x is not None and not x.is_floating_point() and x.dim() > 2), 1)
        self.work += call_price(plan, node, math.prod(entering.shape[:2]) * chosen, entering.shape[1])
        call_inputs = CallInputs(tensors=reads, loaded=self.loaded, size=(entering.shape[0], entering.shape[1]))
        return op_numerics(plan, node, rounded).compute(call_inputs)

    def price(self, choices: Choices, samples: Sequence[Sample]) -> float:
        """What the nodes that the choices touch take at least, in calls of small kernels. Raises SpecError."""
        plan = self.replaced.bound(choices)
        touched = [node for node in self.replaced.all_nodes if _touches(choices, node)]
        rewritten = (plan.as_run(node) for node in touched)
        return sum(rewriting_price(node) for node in rewritten if not node.own_weights) + sum(
            call_price(plan.at_phase(sample.phase), node, sample.count, sample.length)
            for node in touched
            for sample in with_earlier(samples)
        )


def _bytes(values: Values) -> int:
    return sum(tensor.nbytes for tensor in values.values())


def _untouched(plan: Plan, own_plan: Plan, choices: Choices, node: Node) -> bool:
    return not _touches(choices, node) and plan.told_to(node) == own_plan.told_to(node)


def _touches(choices: Choices, node: Node) -> bool:
    return any(place[0] == node.name for place, _ in choices)


def _whole(value: Tensor, partials: int) -> Tensor:
    """The sum of partial sums, exact up to one rounding; a whole value as it is."""
    return value if partials == 1 else value.sum(1, dtype=torch.float64).to(value.dtype)


def _handed(values: Values, value: str | None, node: Node) -> Tensor | None:
    """A value as the node is handed it; None where it is not read."""
    return None if value is None else values.get(f"{value}{EDGE}{node.name}", values.get(value))


def _same_tensors(part: Part, base_part: Part) -> bool:
    (tensors, _), (base_tensors, _) = part, base_part
    return len(tensors or ()) == len(base_tensors or ()) and all(map(is_, tensors or (), base_tensors or ()))


def _cut(value: Tensor | None, axis: int, span: tuple[int, int]) -> Tensor | None:
    """A span of a row's tokens; of what each sees, [1, t, t], all of the span."""
    if value is None:
        return None
    first, last = span
    whole = value.narrow(axis, first, last - first)
    return whole[:, :, first:last].diagonal(dim1=1, dim2=2) if value.dtype == torch.bool and value.dim() == 3 else whole


def _joined(tensors: Ports | None, axis: int) -> Tensor | None:
    """What a node reads of several steps as one tensor; the very tensor where it is of one."""
    if tensors is None:
        return None
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, axis)
