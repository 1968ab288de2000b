"""Which ops depend on the schedule, by what both plans state, and the steps that each side makes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from moeparity.bisection.context import Context, Measure
from moeparity.bisection.schedule.data import Schedule, Steps
from moeparity.bisection.schedule.show import schedule_reading, steps_reading
from moeparity.bisection.study import Study
from moeparity.plan.bound import Plan
from moeparity.plan.graph import Node
from moeparity.plan.sides import CANDIDATE, REFERENCE, Side


def measure(of: Context) -> Schedule:
    """The section; it is worked out from the plans, nothing is measured."""
    study = of.study
    sides = study.sides
    views = {name: seeing(side.plan) for name, side in sides.items()}
    steps = {name: tuple(steps_of(study, side)) for name, side in sides.items()}
    reading = schedule_reading(
        views[REFERENCE],
        views[CANDIDATE],
        differs=study.reference.schedule != study.candidate.schedule,
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


def seeing(plan: Plan) -> dict[str, int]:
    """Ops of which some node sees its rows or chooses by phase, with how many do; a user's function by its name."""
    replaced = plan.replaced()
    nodes = [node for node in plan.graph.nodes if _sees(plan, node)]
    return dict(Counter(replaced[node.name].call if node.name in replaced else node.op.name for node in nodes))


def _sees(plan: Plan, node: Node) -> bool:
    """Whether a token's result at a node may depend on the schedule: on the rows beside it, or on the phase."""
    phases = plan.distinct
    return any(in_phase.sees_rows(node) or in_phase.active(node) != plan.active(node) for in_phase in phases)


def steps_of(study: Study, side: Side) -> Iterator[Steps]:
    """How many steps of how many rows a side makes of this study's tokens, by phase, in the order of first use."""
    schedule = study.walked(side).on(*study.tokens.input_ids.shape)
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
