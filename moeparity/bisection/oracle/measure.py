"""How far both sides lie from the oracle, and which is nearer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from moeparity.bisection.context import Context
from moeparity.bisection.oracle.data import Distance, Oracle, OracleNode, Standing
from moeparity.bisection.oracle.observe import TRUTH, NodeDistances, Truth
from moeparity.bisection.oracle.show import accuracy_reading
from moeparity.bisection.plan import Plan
from moeparity.bisection.verdict.data import Verdicts
from moeparity.metrics.interval import token_mean
from moeparity.metrics.tokens import SequenceSums
from moeparity.metrics.verdict import MINIMUM_SEQUENCES, Interval
from moeparity.plan.sides import CANDIDATE, REFERENCE


def measure(of: Context) -> Oracle | None:
    """Both sides against the oracle; None if the recipe asks for none."""
    truth = of.observed.of_watch(TRUTH)
    return None if truth is None else _oracle(of.plan, truth, of[Verdicts].verdict.status)


def _oracle(plan: Plan, truth: Truth, status: str) -> Oracle:
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
