"""A walker: it runs one plan in a pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from moeparity.engine.grafts import Graft
from moeparity.engine.routes import Forced
from moeparity.errors import SpecError
from moeparity.ops.attribute import RefusedError
from moeparity.plan.bound import BoundGraph
from moeparity.plan.graph import Node
from moeparity.plan.schedule.cases import Case, parse
from moeparity.plan.schedule.steps import MicroBatches, Schedule

Name = Any
"""The name of a walker, hashable: a side's name, or the key of a trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walker:
    """One plan on one schedule.

    inputs_of: for a shadow, the variant whose values it reads (None: it reads its own).
    routes: which routes its routers take over from another walker (None: none).
    functions: the users' functions that its plan's regions call, by `module:function`.
    grafts: recorded values, by name; later nodes read them instead of what the walker computes.
    shows: what observers see: at every node what it computes, or only what was recorded.
    skips: nodes that it leaves out. Only shadows do so, whose values nobody reads.
    """

    name: Name
    plan: BoundGraph
    schedule: Schedule | MicroBatches
    inputs_of: Name | None = None
    routes: Forced | None = None
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    grafts: Mapping[str, Graft] = field(default_factory=dict)
    shows: Literal["computed", "recorded"] = "computed"
    skips: frozenset[str] = frozenset()

    def shown_at(self, node: Node) -> bool:
        """Whether observers see its values at a node."""
        # Log-probabilities are taken as the plan says: from recorded logits, and from what replaces them.
        return self.shows == "computed" or node.op.reports or all(value in self.grafts for value in node.values)

    @property
    def plans(self) -> Mapping[Case, BoundGraph]:
        """Its plan in each case of its schedule's phases. The first one stands for the walker where only one is
        reported.
        """
        cases = [case for phase in self.schedule.phases for case in self.plan.phases if parse(case)[0] == phase]
        return {case: self.plan.at_phase(case) for case in cases}


class WalkersRefusedError(SpecError):
    """A pass ended because an op refuses what these walkers would compute. The others can run without them."""

    def __init__(self, walkers: Iterable[Name], refusal: RefusedError) -> None:
        super().__init__(str(refusal))
        self.walkers, self.refusal = frozenset(walkers), refusal
