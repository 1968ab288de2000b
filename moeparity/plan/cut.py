"""The phases of a schedule cut into cases, so that every rule holds in the whole of a case or in nothing of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from moeparity.errors import SpecError
from moeparity.plan.graph import Graph
from moeparity.plan.rule import Rule
from moeparity.plan.schedule.cases import Case, cut, described, parse

MOST_CASES: Final = 256
"""The most cases a plan may have; each is bound separately, so many cost time."""


def cut_by(graph: Graph, phases: Iterable[Case], rules: Iterable[Rule]) -> tuple[Case, ...]:
    """The phases, cut at every bound of a rule by numbers (of rows, keys, ...) that applies to this graph.

    Raises SpecError for too many cases.
    """
    ops = {node.op.name for node in graph.nodes}
    ranged = [rule for rule in rules if rule.cases and rule.holds_of(graph.model_type, graph.sizes) and rule.needs(ops)]
    cases = cut(phases, (case for rule in ranged for case in rule.cases or ()))
    if len(cases) > MOST_CASES:
        by_numbers = next(rule for rule in ranged if any(parse(case)[1] for case in rule.cases or ()))
        raise SpecError(
            f"{by_numbers.where}: the rules here tell {len(cases):,} cases apart by numbers of rows and keys; expected "
            f"at most {MOST_CASES:,}. Let them share bounds."
        )
    return cases


def refuse_other_phases(rule: Rule, in_rows: Sequence[Rule], phases: tuple[Case, ...]) -> None:
    """Raise SpecError for an override that applies to no step of the schedules: it would be ignored silently.

    `in_rows` is the override with `bytes:` and `ranks:` turned into numbers of rows.
    """
    if not any(row_rule.holds_in(phase) for row_rule in in_rows for phase in phases):
        raise SpecError(
            f"{rule.where}: {rule.label}:{rule.values[0][0]} is set for steps of {described(rule.cases or ())}, and "
            f"the schedules here have none; they have {described(phases)}. Leave it out, or name a phase that there is."
        )
