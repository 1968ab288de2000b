"""Which side is nearer the oracle, and how far both lie from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from moeparity.bisection.observed import Observed
from moeparity.bisection.oracle.observe import NodeDistances, Truth
from moeparity.bisection.oracle.report import Distance, Oracle, OracleNode, Standing
from moeparity.bisection.oracle.words import accuracy_reading
from moeparity.bisection.plan import Plan
from moeparity.metrics.interval import token_mean
from moeparity.metrics.tokens import SequenceSums
from moeparity.metrics.verdict import MINIMUM_SEQUENCES, Interval
from moeparity.plan.sides import CANDIDATE, REFERENCE


def parts(plan: Plan, observed: Observed, report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Both sides against the oracle; None for a recipe without one."""
    truth: Truth | None = observed.sections.get("oracle")
    return {"oracle": None if truth is None else _oracle(plan, truth, report["verdict"].status)}


def _oracle(plan: Plan, truth: Truth, status: str) -> Oracle:
    """`status` is the verdict on parity."""
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
            ratio=nodes[plan.model.graph.output].ratio,
            reference=nearer.reference.estimate,
            candidate=nearer.candidate.estimate,
            change=(nearer.change.low, nearer.change.high),
        ),
        layers=tuple(_closing(plan, nodes)),
        nodes=tuple(_node(record) for record in nodes.values()),
    )


def _closing(plan: Plan, nodes: dict[str, NodeDistances]) -> Iterator[OracleNode]:
    for segment in plan.model.graph.segments:
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
    """Both sides' full-vocabulary KL(side || oracle), in nats per token, and who is nearer.

    change: the interval of the candidate's KL minus the reference's, paired over sequences.
    standing: of the candidate: `nearer` or `farther` when the interval of the change excludes 0, `level` when both have
        the same KL in every sequence, `undecided` else, and with fewer than 25 sequences.
    """

    reference: Interval
    candidate: Interval
    change: Interval
    standing: Standing


def accuracy(reference: SequenceSums, candidate: SequenceSums) -> Accuracy:
    """Which side is nearer the oracle, from both sides' sums with the oracle in the place of the reference."""
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
