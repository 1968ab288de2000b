"""What stands beside the verdict in a report: the floor under it, and which side is nearer the oracle."""

from __future__ import annotations

import math
from collections.abc import Iterator

from moeparity.bisection.floor import report as truth
from moeparity.bisection.floor.words import FloorValue, floor_reading
from moeparity.bisection.observed import Observed
from moeparity.bisection.oracle.observe import NodeDistances, accuracy
from moeparity.bisection.oracle.words import accuracy_reading
from moeparity.bisection.prepare import Plan
from moeparity.bisection.trials import FLOOR
from moeparity.metrics.interval import sequence_mean, token_mean
from moeparity.metrics.verdict import Verdict
from moeparity.plan.sides import CANDIDATE, REFERENCE


def floor(plan: Plan, observed: Observed, verdict: Verdict) -> truth.Floor | None:
    """How far the reference lies from itself, in the gate's metric, and the candidate's value over it.

    None for a recipe that asks for no floor.
    """
    if not plan.recipe.floor:
        return None
    trials = tuple(_floor_trials(plan, observed))
    values = [FloorValue(name=t.name, value=t.value.estimate, bit_identical=t.bit_identical) for t in trials]
    # Not by max() alone, which may drop a NaN.
    largest = max((v.value for v in values), key=lambda value: (math.isnan(value), value), default=0.0)
    return truth.Floor(
        trials=trials,
        largest=largest,
        bit_identical=bool(trials) and all(trial.bit_identical for trial in trials),
        ratio=verdict.value.estimate / largest if largest > 0 else None,
        reading=tuple(floor_reading(values, metric=verdict.metric, value=verdict.value.estimate, gate=verdict.below)),
    )


def _floor_trials(plan: Plan, observed: Observed) -> Iterator[truth.FloorTrial]:
    mean = token_mean if plan.recipe.gate.reduce == "token" else sequence_mean
    for name, base in observed.changes.nodes:
        if name.startswith(FLOOR) and base == REFERENCE:
            sums, flips = observed.logits.sums(name), observed.routes.total(name)
            yield truth.FloorTrial(
                name=name.removeprefix(FLOOR),
                value=mean(sums.k3, sums.tokens),
                bit_identical=not bool(sums.unequal.any()),
                flipped_routes=flips.set_flips / flips.tokens if flips else None,
            )


def oracle(plan: Plan, observed: Observed, status: str) -> truth.Oracle | None:
    """Both sides against the oracle; None for a recipe without one. `status` is the verdict on parity."""
    if observed.truth is None:
        return None
    logits, nodes = observed.truth.logits, observed.truth.distances.nodes
    found = accuracy(logits.sums(REFERENCE), logits.sums(CANDIDATE))
    return truth.Oracle(
        kl_reference=found.reference,
        kl_candidate=found.candidate,
        kl_change=found.change,
        standing=found.standing,
        reading=accuracy_reading(
            found.standing,
            status,
            ratio=nodes[plan.model.graph.output].ratio,
            reference=found.reference.estimate,
            candidate=found.candidate.estimate,
            change=(found.change.low, found.change.high),
        ),
        layers=tuple(_closing(plan, nodes)),
        nodes=tuple(_node(record) for record in nodes.values()),
    )


def _closing(plan: Plan, nodes: dict[str, NodeDistances]) -> Iterator[truth.OracleNode]:
    for segment in plan.model.graph.segments:
        seen = [nodes[node.name] for node in segment.nodes if node.name in nodes]
        if seen and segment.name != "before":
            yield _node(seen[-1])


def _node(record: NodeDistances) -> truth.OracleNode:
    reference, candidate = (
        truth.Distance(relative_l2=side.relative_l2, max_abs=side.largest)
        for side in (record.reference, record.candidate)
    )
    return truth.OracleNode(
        node=record.node.name,
        op=record.node.op.name,
        layer=record.node.layer,
        reference=reference,
        candidate=candidate,
        ratio=record.ratio,
    )
