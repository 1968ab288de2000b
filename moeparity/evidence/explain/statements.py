"""What explanations state of choices: of each place one value in a phase, whichever nodes were computed with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from moeparity.errors import TraceError
from moeparity.evidence.explain.report import Explanation
from moeparity.plan.schedule.cases import parse

Reason = str
"""Why a choice is not decided; empty where it is."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A choice that an explanation states: its address and value, and why it is not decided (empty: it is)."""

    address: str
    value: str
    why: Reason


def phases_of(node: Explanation) -> list[str]:
    """The phases that a node is explained in, each once whatever its cases are."""
    return list(dict.fromkeys(parse(case)[0] for case in node.phases))


def agreed(
    nodes: Sequence[Explanation], of_node: Callable[[Explanation], Iterator[Statement]]
) -> list[tuple[Explanation, list[Statement]]]:
    """The statements of each explanation. If several explanations computed a place anew, only one of them states it:
    one whose values decide it, if there is one.

    Raises TraceError if two explanations computed a place with different values in one phase, and one of them decides
    its value.
    """
    every = [(node, list(of_node(node))) for node in nodes]
    owners: dict[tuple[str, str], tuple[Explanation, Statement]] = {}
    for node, statements in every:
        for statement in statements:
            for phase in phases_of(node):
                owner = owners.get((statement.address, phase))
                if owner is None or _is_surer(statement, owner[1]):
                    owners[statement.address, phase] = node, statement
    for node in nodes:
        _refuse_other_values(node, owners)
    return [
        (node, [s for s in statements if any(owners[s.address, phase][0] is node for phase in phases_of(node))])
        for node, statements in every
    ]


def _is_surer(statement: Statement, earlier: Statement) -> bool:
    return bool(earlier.why) and not statement.why


def _refuse_other_values(node: Explanation, owners: dict[tuple[str, str], tuple[Explanation, Statement]]) -> None:
    """Raise TraceError where a node was computed with another value than is stated, which does not do as well there."""
    as_well = {choice.place: choice.others for choice in node.open}
    for address, value in node.settings:
        for phase in phases_of(node):
            owner = owners.get((address, phase))
            if owner is None or owner[1].value in {value, *as_well.get(address, ())}:
                continue
            raise TraceError(
                f"--profile-out: {address} is {owner[1].value} by {owner[0].node} and {value} by {node.node}, and a "
                "profile states one value for a phase. Name one of these nodes with --node."
            )


def as_number(value: str) -> int | float | str:
    """A value of an explanation as a setting has it: a number where it is one."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(value)
    return value
