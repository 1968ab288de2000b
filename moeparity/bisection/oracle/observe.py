"""Observes how far both sides lie from the oracle. Parity says whether they agree, this says which is nearer to
exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import torch

from moeparity.bisection.observers import Logits
from moeparity.bisection.oracle.side import ORACLE
from moeparity.bisection.plan import Plan
from moeparity.bisection.trials import Trials
from moeparity.bisection.watch import Watch
from moeparity.engine.view import NodeView
from moeparity.engine.walker import Name
from moeparity.metrics.exact import Exact
from moeparity.plan.graph import Node
from moeparity.plan.sides import CANDIDATE, REFERENCE


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
        return DistanceSum(
            squared=self.squared + addend.squared,
            largest=larger,
            squared_oracle=self.squared_oracle + addend.squared_oracle,
        )


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
    """Distances of two walkers from the oracle, at every node with floating-point output.

    Left out are values in slot order, and the node of log-probabilities, where one side may hand on logits; the KL
    measures those. Values of another shape than the oracle's are left out too. Padding counts, as in `Divergence`.
    """

    reference: Name
    candidate: Name
    oracle: Name
    nodes: dict[str, NodeDistances] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        # Slots in another order would outweigh every rounding.
        if view.node.op.slot_order or view.node.op.reports:
            return
        if not view.ran(self.reference, self.candidate, self.oracle):
            return
        for port in range(len(view.node.outputs)):
            truth = view.tensor(self.oracle, port)
            if not truth.is_floating_point():
                continue
            values = [view.tensor(name, port) for name in (self.candidate, self.reference)]
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
class Truth:
    """Compares both sides with the oracle in one pass: values at every node, and log-probabilities."""

    distances: Distances
    logits: Logits

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        self.distances.see(view)
        self.logits.see(view)

    def part(self, rows: slice) -> Truth:
        """What was seen of the sequences `rows`, in the form that another observer's `join` takes."""
        return self

    def join(self, part: Truth, rows: slice) -> None:
        """Add what another observer saw of later waves, the sequences `rows`."""
        self.distances.join(part.distances, rows)
        self.logits.join(part.logits, rows)

    @property
    def result(self) -> Truth:
        """Both observers; they keep sums only."""
        return self


def observer(plan: Plan, trials: Trials) -> Truth | None:
    """The observer of both sides and the oracle; None if the recipe asks for no oracle."""
    if plan.oracle is None:
        return None
    ids, _, scored = plan.tokens_on_device
    output, sampled_from = plan.model.graph.scores, plan.recipe.tokens.sampler
    logits = Logits(output, ORACLE, (REFERENCE, CANDIDATE), ids, scored, sampled_from)
    return Truth(distances=Distances(REFERENCE, CANDIDATE, ORACLE), logits=logits)


TRUTH: Final[Watch[Truth]] = Watch("oracle", observer, (Truth, Distances, NodeDistances, DistanceSum))
