"""What runs a plan in a pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from moeparity.engine.grafts import Graft
from moeparity.engine.routes import Forced
from moeparity.plan.bound import BoundGraph
from moeparity.plan.graph import Node
from moeparity.plan.schedule.cases import Case, parse
from moeparity.plan.schedule.steps import MicroBatches, Schedule

Name = Any
"""What a walker is known by, hashable: a side's name, or the key of a trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walker:
    """One plan on one schedule; `inputs_of` names the variant whose values a shadow reads (None: its own).

    `routes` are those its routers are forced to take over from a variant with routes of its own (None: none).
    `functions` are the users' functions its plan's regions call, by `module:function`.
    `grafts` are recorded values, by name, which whoever reads them gets in place of what it computes. `shows` says what
    observers see of it: at every node what it computes; or what was recorded, and nothing where nothing was.
    """

    name: Name
    plan: BoundGraph
    schedule: Schedule | MicroBatches
    inputs_of: Name | None = None
    routes: Forced | None = None
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    grafts: Mapping[str, Graft] = field(default_factory=dict)
    shows: Literal["computed", "recorded"] = "computed"

    def shown_at(self, node: Node) -> bool:
        """Whether observers see its values at a node."""
        # Log-probabilities are taken as the plan says, of recorded logits and of what is made in their stead.
        return self.shows == "computed" or node.op.reports or all(value in self.grafts for value in node.values)

    @property
    def plans(self) -> Mapping[Case, BoundGraph]:
        """Its plan in each case of the phases of its schedule, the first of which speaks for it."""
        cases = [case for phase in self.schedule.phases for case in self.plan.phases if parse(case)[0] == phase]
        return {case: self.plan.at_phase(case) for case in cases}
