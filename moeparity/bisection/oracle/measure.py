"""How far both sides lie from the oracle. Parity says whether they agree, this says which is nearer to exact."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import torch

from moeparity.bisection.context import Context, Measure
from moeparity.bisection.observers import Logits
from moeparity.bisection.oracle.data import Distance, Oracle, OracleNode, Standing
from moeparity.bisection.oracle.show import accuracy_reading
from moeparity.bisection.oracle.side import ORACLE
from moeparity.bisection.study import Study
from moeparity.bisection.trials import Trials
from moeparity.bisection.verdict.data import Verdicts
from moeparity.bisection.watch import SectionObserver, Watch
from moeparity.engine.view import NodeView
from moeparity.metrics.exact import Exact, summed
from moeparity.metrics.interval import token_mean
from moeparity.metrics.tokens import SequenceSums
from moeparity.metrics.verdict import MINIMUM_SEQUENCES, Interval
from moeparity.plan.graph import Node
from moeparity.plan.sides import CANDIDATE, REFERENCE, SIDES


@dataclass(frozen=True, slots=True, kw_only=True)
class DistanceSum:
    """How far one side's values at a node lie from the oracle's, as sums over micro-batches, in fp64.

    squared, largest: sum of squares and maximum of |value - oracle|. squared_oracle: sum of the oracle's squares. NaN
        or infinite if a value is.
    """

    squared: Exact
    largest: float
    squared_oracle: Exact

    @property
    def relative_l2(self) -> float:
        """L2 norm of the difference over that of the oracle; 0 without a difference."""
        if self.squared == 0.0:
            return 0.0
        return math.sqrt(self.squared) / math.sqrt(self.squared_oracle) if self.squared_oracle else math.inf

    def __add__(self, addend: DistanceSum) -> DistanceSum:
        """Both together. `largest` is not taken by max() alone, which may drop a NaN."""
        larger = addend.largest if math.isnan(addend.largest) or addend.largest > self.largest else self.largest
        return summed(self, addend, largest=larger)


def distance(value: torch.Tensor, oracle: torch.Tensor) -> DistanceSum:
    """How far `value` lies from `oracle`; equal shapes, any float dtypes, subtracted in fp64."""
    truth = oracle.double().flatten()
    difference = value.double().flatten() - truth
    return DistanceSum(
        squared=Exact(float(difference.dot(difference))),
        largest=float(difference.abs().max()) if difference.numel() else 0.0,
        squared_oracle=Exact(float(truth.dot(truth))),
    )


@dataclass(slots=True)
class NodeDistances:
    """The distances of the reference's and the candidate's carried values from the oracle's, at one node."""

    node: Node
    reference: DistanceSum
    candidate: DistanceSum

    def add(self, reference: DistanceSum, candidate: DistanceSum) -> None:
        """Add the distances of further tokens."""
        self.reference, self.candidate = self.reference + reference, self.candidate + candidate

    @property
    def ratio(self) -> float:
        """The candidate's L2 distance over the reference's; 1 where both are 0, inf where only the reference's is."""
        ours, theirs = math.sqrt(self.candidate.squared), math.sqrt(self.reference.squared)
        if theirs == 0.0:
            return 1.0 if ours == 0.0 else ours * math.inf
        return ours / theirs


@dataclass(slots=True)
class Distances:
    """Distances of both sides from the oracle, at every node with floating-point output.

    Left out are values in slot order, and the node of log-probabilities, where one side may hand on logits; the KL
    measures those. Values of another shape than the oracle's are left out too. Padding counts, as in `Divergence`.
    """

    nodes: dict[str, NodeDistances] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        # Slots in another order would outweigh every rounding.
        if view.node.op.role.slot_order or view.node.op.role.reports:
            return
        if not view.ran(*SIDES, ORACLE):
            return
        for port in range(len(view.node.outputs)):
            truth = view.tensor(ORACLE, port)
            if not truth.is_floating_point():
                continue
            values = [view.tensor(name, port) for name in (CANDIDATE, REFERENCE)]
            # A fault can change a value's shape; then elements have no counterparts.
            if any(value.shape != truth.shape for value in values):
                continue
            ours, theirs = (distance(value, truth) for value in values)
            record = self.nodes.get(view.node.name)
            if record is None:
                self.nodes[view.node.name] = NodeDistances(view.node, theirs, ours)
            else:
                record.add(theirs, ours)

    def join(self, part: Distances, rows: slice) -> None:
        """Add what another observer saw of later waves, the sequences `rows`."""
        for name, further in part.nodes.items():
            if name in self.nodes:
                self.nodes[name].add(further.reference, further.candidate)
            else:
                self.nodes[name] = further


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth(SectionObserver):
    """Compares both sides with the oracle in one pass: values at every node, and log-probabilities."""

    distances: Distances
    logits: Logits

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        self.distances.see(view)
        self.logits.see(view)

    def join(self, part: Truth, rows: slice) -> None:
        """Add what another observer saw of later waves, the sequences `rows`."""
        self.distances.join(part.distances, rows)
        self.logits.join(part.logits, rows)


def observer(study: Study, trials: Trials) -> Truth | None:
    """The observer of both sides and the oracle; None if the recipe asks for no oracle."""
    if study.oracle is None:
        return None
    return Truth(distances=Distances(), logits=Logits.of(study, SIDES, ORACLE))


TRUTH: Final[Watch[Truth]] = Watch("oracle", observer, (Truth, Distances, NodeDistances, DistanceSum))


def measure(of: Context) -> Oracle | None:
    """Both sides against the oracle; None if the recipe asks for none."""
    truth = of.observed.of_watch(TRUTH)
    return None if truth is None else _oracle(of.study, truth, of[Verdicts].verdict.status)


def _oracle(study: Study, truth: Truth, status: str) -> Oracle:
    """The section's data; `status` is the verdict on parity."""
    logits, nodes = truth.logits, truth.distances.nodes
    nearer = accuracy(logits.sums(REFERENCE), logits.sums(CANDIDATE))
    return Oracle(
        kl_reference=nearer.reference,
        kl_candidate=nearer.candidate,
        kl_change=nearer.change,
        standing=nearer.standing,
        reading=accuracy_reading(
            nearer.standing,
            status,
            ratio=nodes[study.model.graph.output].ratio,
            reference=nearer.reference.estimate,
            candidate=nearer.candidate.estimate,
            change=(nearer.change.low, nearer.change.high),
        ),
        layers=tuple(_closing(study, nodes)),
        nodes=tuple(_node(record) for record in nodes.values()),
    )


def _closing(study: Study, nodes: dict[str, NodeDistances]) -> Iterator[OracleNode]:
    for segment in study.model.graph.segments:
        distances = [nodes[node.name] for node in segment.nodes if node.name in nodes]
        if distances and segment.name != "before":
            yield _node(distances[-1])


def _node(record: NodeDistances) -> OracleNode:
    reference, candidate = (
        Distance(relative_l2=side.relative_l2, max_abs=side.largest) for side in (record.reference, record.candidate)
    )
    return OracleNode(
        node=record.node.name,
        op=record.node.op.name,
        layer=record.node.layer,
        reference=reference,
        candidate=candidate,
        ratio=record.ratio,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Both sides' KL(side || oracle) over the whole vocabulary, in nats per token, and which is nearer.

    change: the interval of the candidate's KL minus the reference's, paired over sequences.
    standing: of the candidate: `nearer` or `farther` if the interval of the change excludes 0, `level` if both have the
        same KL in every sequence, else `undecided`, as with fewer than 25 sequences.
    """

    reference: Interval
    candidate: Interval
    change: Interval
    standing: Standing


def accuracy(reference: SequenceSums, candidate: SequenceSums) -> Accuracy:
    """Which side is nearer to the oracle, from both sides' sums taken with the oracle as reference."""
    tokens = reference.tokens
    ours, theirs = candidate.kl_candidate_reference, reference.kl_candidate_reference
    change = token_mean(ours - theirs, tokens)
    return Accuracy(
        reference=token_mean(theirs, tokens),
        candidate=token_mean(ours, tokens),
        change=change,
        standing=_standing(change),
    )


def _standing(change: Interval) -> Standing:
    if change.method == "exact":
        return "level"
    if change.sequences < MINIMUM_SEQUENCES:
        return "undecided"
    return "nearer" if change.high < 0 else "farther" if change.low > 0 else "undecided"


MEASURE = Measure(gives=Oracle, measure=measure, needs=(Verdicts,), watch=TRUTH)
