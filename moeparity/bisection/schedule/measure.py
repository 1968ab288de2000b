"""Which ops see the schedule, by what the plans of both sides state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from moeparity.bisection.observed import Observed
from moeparity.bisection.prepare import Plan
from moeparity.bisection.schedule.report import Schedule
from moeparity.bisection.schedule.words import schedule_reading
from moeparity.plan.bind import BoundGraph


def parts(plan: Plan, observed: Observed, report: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schedule; nothing of it is measured."""
    reference, candidate = plan.reference, plan.candidate
    seen_by_reference, seen_by_candidate = seeing(reference.plan), seeing(candidate.plan)
    reading = schedule_reading(seen_by_reference, seen_by_candidate, differs=reference.schedule != candidate.schedule)
    schedule = Schedule(reference=seen_by_reference, candidate=seen_by_candidate, reading=tuple(reading))
    return {"schedule": schedule}


def seeing(plan: BoundGraph) -> dict[str, int]:
    """Ops of which some node sees its rows, each with how many do; a user's function by its call."""
    replaced = plan.replaced()
    nodes = [node for node in plan.graph.nodes if plan.sees_rows(node)]
    return dict(Counter(replaced[node.name].call if node.name in replaced else node.op.name for node in nodes))
