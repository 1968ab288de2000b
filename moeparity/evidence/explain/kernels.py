"""Kernels called again on inputs that were met, under other choices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import Tensor

from moeparity.engine.computation import op_numerics
from moeparity.errors import SpecError
from moeparity.evidence.explain.faults import PLANTED, every_expert, order_of, ordered, suspects_of
from moeparity.evidence.explain.price import call_price, rewriting_price
from moeparity.evidence.explain.replaced import Choices, Replaced
from moeparity.evidence.explain.sample import Ports, Sample, Values
from moeparity.inputs.weights.store import Loaded
from moeparity.ops.attribute import EDGE
from moeparity.ops.log_softmax import UNROUNDED
from moeparity.plan.bound import BoundGraph
from moeparity.plan.faults.apply import experts_of
from moeparity.plan.graph import Node
from moeparity.plan.setting import Place

KEPT: Final = 1 << 24
"""Bytes of what nodes gave in the last trials that are kept."""


class UnreadError(SpecError):
    """Under some choices a node reads a value that was not recorded: they are not refused, nothing is known of them."""


@dataclass(slots=True)
class Kernels:
    """Calls the kernels of the replaced nodes again; `calls` counts them, `work` what they take (a small one: 1).

    What no choice of a trial touches is computed once for each micro-batch, and what the last trials had in common with
    it is not computed again.
    """

    replaced: Replaced
    loaded: Loaded = field(default_factory=Loaded)
    calls: int = 0
    work: float = 0.0
    _base: dict[int, tuple[Sample, dict[str, Tensor]]] = field(default_factory=dict)
    _inner: dict[tuple[object, ...], dict[str, Tensor]] = field(default_factory=dict)
    _taken: int = 0

    def let_go(self) -> None:
        """Forget what was computed."""
        self._base.clear()
        self._inner.clear()
        self._taken = 0

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
        """What the nodes give with these choices, whole. Raises SpecError where an op refuses them, UnreadError where
        a node reads what was not recorded.
        """
        values, plan = self.values(choices, sample), self.replaced.bound(choices).at_phase(sample.phase)
        tail = self.replaced.tail
        if tail is not None and _touches(choices, tail):
            # Logits that nobody rounds are compared in the dtype in which the function gives them.
            unrounded = plan.active(tail)["form"] == UNROUNDED
            return (values[tail.name].to(sample.given[0].dtype) if unrounded else values[tail.name],)
        return tuple(_whole(values[value], plan.partials[value]) for value in self.replaced.nodes[-1].values)

    def suspects(self, sample: Sample, choices: Choices) -> tuple[int, ...]:
        """The experts that may be why a micro-batch was given with other bits than these choices give."""
        base, ids = self.outputs(choices, sample), self.ids(sample, choices)
        return () if base is None or ids is None else suspects_of(sample.given[0], base[0], ids)

    def order(self, sample: Sample, choices: Choices) -> Place | None:
        """The order of experts in which, beside these choices, every row is as it was given; None where none is."""
        closing, ids = self.replaced.nodes[-1], self.ids(sample, choices)
        if closing is not self._experts() or ids is None:
            return None
        rows: dict[int, Tensor] = {}
        for expert in range(experts_of(closing)):
            trial = self.outputs(choices | {(every_expert(closing, expert), PLANTED)}, sample)
            if trial is None or trial[0].shape != sample.given[0].shape or trial[0].dtype != sample.given[0].dtype:
                return None
            rows[expert] = trial[0]
        order = order_of(sample.given[0], rows, ids)
        return None if order is None else ordered(closing, order)

    def _experts(self) -> Node | None:
        """The node among these whose rows are those of experts."""
        return next((node for node in self.replaced.nodes if node.op.slot_order and experts_of(node)), None)

    def ids(self, sample: Sample, choices: Choices) -> Tensor | None:
        """The experts of each token's slots; None where these nodes have none, or do not run."""
        node = self._experts()
        if node is None:
            return None
        try:
            return self.values(choices, sample)[node.inputs[node.ports.index("ids")]]
        except SpecError:
            return None

    def _walked(self, plan: BoundGraph, choices: Choices, sample: Sample, base: Values) -> dict[str, Tensor]:
        """All values of the nodes, those on edges too; `base` holds them without the choices."""
        tail = self.replaced.tail
        walks_tail = tail is not None and _touches(choices, tail)
        values, own_plan, before = dict(sample.values), self.replaced.plan.at_phase(sample.phase), set[str]()
        for node in self.replaced.all_nodes if walks_tail else self.replaced.nodes:
            before.add(node.name)
            reads = [_handed(values, value, node) for value in plan.read_inputs(node)]
            unseen = [name for name, x in zip(plan.read_inputs(node), reads, strict=True) if name and x is None]
            if unseen:
                raise UnreadError(f"{node.name}: {unseen[0]} is not known.")
            names = (*node.values, *(f"{node.values[0]}{EDGE}{reader}" for reader in plan.edges(node)))
            if _untouched(plan, own_plan, choices, node) and _reads_same(reads, base, node, plan):
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
                self._keep(key, self._computed_at(plan, node, choices, reads))
            values |= self._inner[key]
        return values

    def _computed_at(
        self, plan: BoundGraph, node: Node, choices: Choices, reads: Sequence[Tensor | None]
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
        self._taken += _bytes(values)
        while self._taken > KEPT and len(self._inner) > 1:
            self._taken -= _bytes(self._inner.pop(next(iter(self._inner))))

    def _call(
        self, plan: BoundGraph, node: Node, rounded: Mapping[str, object], reads: Sequence[Tensor | None]
    ) -> Ports:
        self.calls += 1
        entering = next(x for x in reads if x is not None)
        chosen = next((x.shape[2] for x in reads if x is not None and not x.is_floating_point() and x.dim() > 2), 1)
        self.work += call_price(plan, node, math.prod(entering.shape[:2]) * chosen, entering.shape[1])
        return op_numerics(plan, node, rounded).compute(
            reads, self.loaded, (entering.shape[0], entering.shape[1]), None
        )

    def price(self, choices: Choices, samples: Sequence[Sample]) -> float:
        """What the nodes that the choices touch take at least, in calls of small kernels. Raises SpecError."""
        plan = self.replaced.bound(choices)
        touched = [node for node in self.replaced.all_nodes if _touches(choices, node)]
        rewritten = (plan.as_run(node) for node in touched)
        return sum(rewriting_price(node) for node in rewritten if not node.own_weights) + sum(
            call_price(plan.at_phase(sample.phase), node, sample.tokens, sample.length)
            for node in touched
            for sample in samples
        )


def _bytes(values: Values) -> int:
    return sum(tensor.nbytes for tensor in values.values())


def _untouched(plan: BoundGraph, own_plan: BoundGraph, choices: Choices, node: Node) -> bool:
    return not _touches(choices, node) and plan.told_to(node) == own_plan.told_to(node)


def _touches(choices: Choices, node: Node) -> bool:
    return any(place[0] == node.name for place, _ in choices)


def _whole(value: Tensor, partials: int) -> Tensor:
    """The sum of partial sums, exact up to one rounding; a whole value as it is."""
    return value if partials == 1 else value.sum(1, dtype=torch.float64).to(value.dtype)


def _handed(values: Values, value: str | None, node: Node) -> Tensor | None:
    """A value as the node is handed it; None where it is not read."""
    return None if value is None else values.get(f"{value}{EDGE}{node.name}", values.get(value))


def _reads_same(reads: Sequence[Tensor | None], base: Values, node: Node, plan: BoundGraph) -> bool:
    """Whether a node reads the very tensors that it reads without any choice, and made something of them."""
    before = (_handed(base, value, node) for value in plan.read_inputs(node))
    return node.values[0] in base and all(x is y for x, y in zip(reads, before, strict=True))
