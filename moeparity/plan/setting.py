"""Places, and the settings at them.

A *place* is a node with the name of one of its choices: an attribute of its op, `site->consumer` for a site on one
edge, `dtype`, `impl` or `fault`. Everything two variants of a graph may differ in, schedule aside, is a place, so that
a mixture of both is made by taking places from the other. A place may have another value in each phase of a schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from moeparity.ops.attribute import Value
from moeparity.plan.graph import Graph, Node
from moeparity.plan.rule import Rule
from moeparity.plan.schedule.cases import Case

Place = tuple[str, str]
"""A node name and the name of a choice there."""

DTYPE, IMPL, FAULT = "dtype", "impl", "fault"
"""Choices every node has: the dtype it runs in, a user's function in place of its kernel, and faults ("": none)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The value at one place, and the rule it comes from (None: the op's or the variant's default).

    For a setting made by a fusion, `chain` are the nodes that the fused kernel computes, and `beneath` is the setting
    that takes effect where that kernel is not run.
    """

    value: Value
    rule: Rule | None
    chain: tuple[str, ...] = ()
    beneath: Setting | None = None

    @property
    def origin(self) -> str:
        """Where the value was set, as it is printed."""
        return "default of the op" if self.rule is None else f"{self.rule.where} ({self.rule.label})"

    @property
    def set_by(self) -> str:
        """What makes the engine use the value (a flag or its default), and the profile that says so; empty outside
        profiles.
        """
        return "" if self.rule is None else self.rule.cause

    @property
    def level(self) -> str:
        """How sure the profile is of the value; empty where nobody set it."""
        return "" if self.rule is None else self.rule.level


ByPhase = Mapping[Case, Mapping[Place, Setting]]
"""All settings of a plan in each of its phases."""


def edges_of(graph: Graph, node: Node) -> Iterator[tuple[str, str]]:
    """The (site, consumer) pairs of a node: one for every consumer that may read another rounding of a site."""
    if node.edge_sites:
        yield from ((site, consumer) for site in node.edge_sites for consumer in graph.digraph.successors(node.name))
