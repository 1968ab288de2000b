"""Which ops depend on the schedule, by what both plans state, and the steps that each side makes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from moeparity.bisection.context import Context, Measure
from moeparity.bisection.plan import Plan
from moeparity.bisection.schedule.data import Schedule, Steps
from moeparity.bisection.schedule.show import schedule_reading, steps_reading
from moeparity.plan.bound import BoundGraph
from moeparity.plan.graph import Node
from moeparity.plan.sides import CANDIDATE, REFERENCE, Side


def measure(of: Context) -> Schedule:
    """The section; it is worked out from the plans, nothing is measured."""
    plan = of.plan
    sides = plan.sides
    views = {name: seeing(side.plan) for name, side in sides.items()}
    steps = {name: tuple(steps_of(plan, side)) for name, side in sides.items()}
    reading = schedule_reading(
        views[REFERENCE],
        views[CANDIDATE],
        differs=plan.reference.schedule != plan.candidate.schedule,
        mixing=tuple(name for name, side in sides.items() if side.schedule.hands_on),
    )
    reading += [steps_reading(name, steps[name]) for name, side in sides.items() if not side.schedule.is_plain]
    return Schedule(
        reference=views[REFERENCE],
        candidate=views[CANDIDATE],
        reference_steps=steps[REFERENCE],
        candidate_steps=steps[CANDIDATE],
        reading=tuple(reading),
    )


def seeing(plan: BoundGraph) -> dict[str, int]:
    """Ops of which some node sees its rows or chooses by phase, with how many do; a user's function by its name."""
    replaced = plan.replaced()
    nodes = [node for node in plan.graph.nodes if _sees(plan, node)]
    return dict(Counter(replaced[node.name].call if node.name in replaced else node.op.name for node in nodes))


def _sees(plan: BoundGraph, node: Node) -> bool:
    """Whether a token's result at a node may depend on the schedule: on the rows beside it, or on the phase."""
    phases = plan.distinct
    return any(in_phase.sees_rows(node) or in_phase.active(node) != plan.active(node) for in_phase in phases)


def steps_of(plan: Plan, side: Side) -> Iterator[Steps]:
    """How many steps of how many rows a side makes of this plan's tokens, by phase, in the order of first use."""
    schedule = plan.walked(side).on(*plan.tokens.input_ids.shape)
    for phase in schedule.phases:
        steps = [step for step in schedule.steps if step.phase == phase and not step.filler and step.spans]
        rows = [step.rows for step in steps]
        head = [sum(span.tokens for span in step.scored_spans) for step in steps]
        if steps:
            yield Steps(
                phase=phase,
                steps=len(steps),
                least_rows=min(rows),
                most_rows=max(rows),
                least_head_rows=min(head),
                most_head_rows=max(head),
            )


MEASURE = Measure(gives=Schedule, measure=measure)
