"""Kernels called again on inputs that were met, under other choices, and how near they come to what was given there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from moeparity.engine.computation import op_numerics
from moeparity.errors import SpecError
from moeparity.evidence.explain.faults import PLANTED, every_expert, order_of, ordered, suspects_of
from moeparity.evidence.explain.vocabulary import Choices, Replaced
from moeparity.inputs.weights.store import Loaded
from moeparity.metrics.divergence import compare
from moeparity.numerics.bits import same_bits
from moeparity.numerics.gemm_forms import ALL
from moeparity.numerics.orders import NATIVE
from moeparity.ops.attention_forms import FLASH
from moeparity.ops.declaration import EDGE
from moeparity.ops.log_softmax import UNROUNDED
from moeparity.plan.bound import BoundGraph
from moeparity.plan.faults.apply import experts_of
from moeparity.plan.graph import Node
from moeparity.plan.schedule.cases import Case
from moeparity.plan.schedule.steps import FORWARD
from moeparity.plan.setting import Place

Values = Mapping[str, Tensor]
Ports = tuple[Tensor, ...]

NATIVELY, WRITTEN = 1 << 24, 1 << 16
"""Products that torch's own GEMMs, and sums that are written out, make while a small kernel is called."""
LOOPS = 4
"""Turns of a loop over experts, pieces or tiles that take as long as a small kernel."""
PIECES = ("splits", "blocks", "tensor", "expert", "channels")
"""Attributes that say into how many pieces a node is cut."""
KEPT = 1 << 24
"""Bytes of what nodes gave in the last trials that are kept."""
OTHER_DTYPE = 1e3
"""How much more counts what a value in another dtype leaves unexplained: it can never give all bits, and the dtype of
what is to be explained is known from the start."""


class UnreadError(SpecError):
    """Under some choices a node reads a value that was not recorded: they are not refused, nothing is known of them."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Sample:
    """One micro-batch, or step of a phase, as the function met it: the values that enter its region, by name, and what
    it gave.
    """

    values: Values
    given: Ports
    phase: Case = FORWARD

    @property
    def elements(self) -> int:
        """How many numbers the function gave."""
        return sum(port.numel() for port in self.given)

    @property
    def tokens(self) -> int:
        """How many tokens went through the function; padded ones count."""
        entering = next(iter(self.values.values()))
        return math.prod(entering.shape[:2])

    @property
    def length(self) -> int:
        """How many tokens a sequence has."""
        return next(iter(self.values.values())).shape[1]

    @property
    def bytes(self) -> int:
        """What keeping it takes, the values that others keep too included."""
        return sum(tensor.nbytes for tensor in (*self.values.values(), *self.given))


@dataclass(slots=True)
class Score:
    """How the kernels' values lie to the function's, over all ports of some micro-batches.

    elements, equal_elements: compared, and with equal values. unexplained: sum over the elements of the squared
    difference in units of the mean square of the function's port; 1 for whole numbers that differ, and for a value
    that is not finite on one side or has other bits. all_bits: shapes, dtypes and every bit are equal.
    """

    elements: int = 0
    equal_elements: int = 0
    unexplained: float = 0.0
    ulps: float = 0.0
    all_bits: bool = True
    same_dtypes: bool = True

    @property
    def exact(self) -> bool:
        """Whether every bit is equal, of at least one element."""
        return self.all_bits and self.elements > 0

    @property
    def equal(self) -> float:
        """The share of equal elements."""
        return self.equal_elements / self.elements if self.elements else 0.0

    @property
    def remainder(self) -> float:
        """What is left unexplained, per element; 0 where all bits are equal, more than 0 elsewhere."""
        if self.exact:
            return 0.0
        # Bits may differ where values do not, or hardly: in a dtype, in the sign of a zero.
        tiny = 1e-12 * (self.elements - self.equal_elements + 1)
        return self.distance * (1.0 if self.same_dtypes else OTHER_DTYPE) + tiny

    @property
    def distance(self) -> float:
        """The mean squared difference per element, in units of the function's own mean square."""
        return self.unexplained / self.elements if self.elements else math.inf

    @property
    def mean_ulp(self) -> float:
        """The mean distance in ulps of the coarser dtype; whole numbers that differ are 1 apart. Infinite where a value
        is not finite on one side, has another shape, or where nothing was compared.
        """
        return self.ulps / self.elements if self.elements else math.inf

    @classmethod
    def of_refused(cls, sample: Sample) -> Score:
        """Of choices that an op refuses on a micro-batch: nothing is equal."""
        return cls(elements=sample.elements, unexplained=math.inf, ulps=math.inf, all_bits=False)

    @classmethod
    def of(cls, ports: Ports, trial: Ports) -> Score:
        """The function's values of one micro-batch against a trial's."""
        score = cls()
        for value, other in zip(ports, trial, strict=True):
            score.elements += value.numel()
            score.all_bits &= same_bits(value, other)
            score.same_dtypes &= value.dtype == other.dtype
            if value.shape != other.shape:
                score.unexplained = score.ulps = math.inf
            elif value.is_floating_point() and other.is_floating_point():
                error = compare(value, other)
                score.equal_elements += error.equal
                score.ulps += math.inf if error.excluded else error.sum_ulp
                scale = error.squared_reference / value.numel() or 1.0
                score.unexplained += error.squared_difference / scale + error.excluded
            else:
                differ = int((value != other).sum())
                score.equal_elements += value.numel() - differ
                score.ulps += differ
                score.unexplained += differ
        return score

    def add(self, further: Score) -> None:
        """Count other micro-batches too."""
        self.elements += further.elements
        self.equal_elements += further.equal_elements
        self.unexplained += further.unexplained
        self.ulps += further.ulps
        self.all_bits &= further.all_bits
        self.same_dtypes &= further.same_dtypes


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

    def suspects(self, sample: Sample) -> frozenset[int]:
        """The experts each of which alone may be why a micro-batch was given with other bits."""
        base, ids = self.outputs(frozenset(), sample), self._ids(sample)
        return frozenset() if base is None or ids is None else suspects_of(sample.given[0], base[0], ids)

    def order(self, sample: Sample) -> Place | None:
        """The order of experts in which every row is as it was given; None where there is none."""
        closing, ids = self.replaced.nodes[-1], self._ids(sample)
        if closing is not self._experts() or ids is None:
            return None
        rows: dict[int, Tensor] = {}
        for expert in range(experts_of(closing)):
            trial = self.outputs(frozenset([(every_expert(closing, expert), PLANTED)]), sample)
            if trial is None or trial[0].shape != sample.given[0].shape or trial[0].dtype != sample.given[0].dtype:
                return None
            rows[expert] = trial[0]
        order = order_of(sample.given[0], rows, ids)
        return None if order is None else ordered(closing, order)

    def _experts(self) -> Node | None:
        """The node among these whose rows are those of experts."""
        return next((node for node in self.replaced.nodes if node.op.slot_order and experts_of(node)), None)

    def _ids(self, sample: Sample) -> Tensor | None:
        """The experts of each token's slots; None where these nodes have none."""
        node = self._experts()
        if node is None:
            return None
        value, (_, base) = node.inputs[node.ports.index("ids")], self._base[id(sample)]
        return base.get(value, sample.values.get(value))

    def _walked(self, plan: BoundGraph, choices: Choices, sample: Sample, base: Values) -> dict[str, Tensor]:
        """All values of the nodes, those on edges too; `base` holds them without the choices."""
        tail = self.replaced.tail
        walks_tail = tail is not None and _touches(choices, tail)
        values, own, before = dict(sample.values), self.replaced.plan.at_phase(sample.phase), set[str]()
        for node in self.replaced.all_nodes if walks_tail else self.replaced.nodes:
            before.add(node.name)
            reads = [_handed(values, value, node) for value in plan.read_inputs(node)]
            unseen = [name for name, x in zip(plan.read_inputs(node), reads, strict=True) if name and x is None]
            if unseen:
                raise UnreadError(f"{node.name}: {unseen[0]} is not known.")
            names = (*node.values, *(f"{node.values[0]}{EDGE}{reader}" for reader in plan.edges(node)))
            if _untouched(plan, own, choices, node) and _reads_same(reads, base, node, plan):
                values |= {name: base[name] for name in names}
                continue
            told = sorted(plan.told_to(node).items())
            key = (id(sample), node.name, frozenset(choice for choice in choices if choice[0][0] in before), *told)
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
        self.work += _price(plan, node, math.prod(entering.shape[:2]) * chosen, entering.shape[1])
        return op_numerics(plan, node, rounded).compute(
            reads, self.loaded, (entering.shape[0], entering.shape[1]), None
        )

    def price(self, choices: Choices, samples: Sequence[Sample]) -> float:
        """What the nodes that the choices touch take at least, in calls of small kernels. Raises SpecError."""
        plan = self.replaced.bound(choices)
        touched = [node for node in self.replaced.all_nodes if _touches(choices, node)]
        rewritten = (plan.as_run(node) for node in touched)
        return sum(_numbers(node) / NATIVELY for node in rewritten if not node.own_weights) + sum(
            _price(plan.at_phase(sample.phase), node, sample.tokens, sample.length)
            for node in touched
            for sample in samples
        )


def _bytes(values: Values) -> int:
    return sum(tensor.nbytes for tensor in values.values())


def _numbers(node: Node) -> int:
    """How many numbers are written where a node's weights are made anew."""
    return sum(math.prod(ref.shape) * ref.count for ref in node.weights.values())


def _price(plan: BoundGraph, node: Node, rows: int, length: int) -> float:
    """What a call takes on so many rows, of sequences of a `length`: its products, and its loops in Python."""
    numbers = {name: value for name, value in plan.active(node).items() if not isinstance(value, str)}
    each = [ref.count for ref in node.weights.values() if ref.each]
    products = rows * sum(math.prod(ref.shape) for ref in node.weights.values()) if node.op.gemm else 0
    pieces = max([1.0, *(numbers[name] for name in PIECES if name in numbers)])
    loops = max(each, default=1) * pieces * _tiles(plan.active(node), rows, length)
    return 1 + (loops - 1) / LOOPS + products / (WRITTEN if _written(plan, node) else NATIVELY)


def _tiles(active: Mapping[str, Any], rows: int, length: int) -> float:
    """How many tiles of keys an online softmax goes through, one after the other: of queries that are taken block by
    block only those that they see, half of them.
    """
    if active.get("implementation") != FLASH:
        return 1.0
    tiles = max(1.0, length / int(min(active["kv_block"], active.get("split_keys", length))))
    if active["rows"] != ALL:
        return rows / length * math.ceil(length / int(active["rows"])) * max(1.0, tiles / 2)
    return math.ceil(length / int(active["q_block"])) * max(1.0, tiles / 2) if "q_block" in active else tiles


def _written(plan: BoundGraph, node: Node) -> bool:
    """Whether a sum is added up in an order that is written out, product by product."""
    active = plan.active(node)
    natively = (attribute for attribute in node.op.attributes if attribute.order and attribute.default == NATIVE)
    return any(active.get(attribute.name, NATIVE) != NATIVE for attribute in natively)


def _untouched(plan: BoundGraph, own: BoundGraph, choices: Choices, node: Node) -> bool:
    return not _touches(choices, node) and plan.told_to(node) == own.told_to(node)


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
