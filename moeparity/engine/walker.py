"""A walker: it runs one plan in a pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from moeparity.engine.grafts import Graft
from moeparity.engine.routes import Forced, Recorded
from moeparity.errors import SpecError
from moeparity.ops.attribute import RefusedError
from moeparity.ops.kernels.text import SamplingRequest
from moeparity.plan.bound import Plan
from moeparity.plan.graph import Node
from moeparity.plan.schedule.cases import ALL, Case, parse
from moeparity.plan.schedule.steps import MicroBatches, Schedule
from moeparity.plan.schedule.updates import recomputed

WalkerName = Any
"""The name of a walker, hashable: a side's name, or the key of a trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walker:
    """One plan on one schedule.

    inputs_of: for a shadow, the variant whose values it reads (None: it reads its own).
    routes: which routes its routers take over from another walker or from a record (None: none).
    functions: the users' functions that its plan's regions call, by `module:function`.
    grafts: recorded values, by name; later nodes read them instead of what the walker computes.
    shows: what observers see: at every node what it computes, or only what was recorded.
    keys_of: by the lag of a step's weights, a walker from which the step takes what earlier steps have left of keys,
        values and states; where there is none, from itself.
    skips: nodes that it leaves out. Only shadows do so, whose values nobody reads.
    prompts: how many tokens of each sequence are prompt, the same for all walkers; empty if that is not known.
    requests: what the request of each sequence asks for, the same for all walkers; empty if that is not known.
    """

    name: WalkerName
    plan: Plan
    schedule: Schedule | MicroBatches
    inputs_of: WalkerName | None = None
    keys_of: Mapping[int, WalkerName] = field(default_factory=dict)
    routes: Forced | Recorded | None = None
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    grafts: Mapping[str, Graft] = field(default_factory=dict)
    shows: Literal["computed", "recorded"] = "computed"
    skips: frozenset[str] = frozenset()
    prompts: tuple[int, ...] = ()
    requests: tuple[SamplingRequest, ...] = ()

    @property
    def resets(self) -> bool:
        """Whether no fault lets a sequence begin from the state that another one left."""
        plans = self.plans.values() if self.plan.faults else ()
        return all(edit.subject != "state" for plan in plans for node in plan.nodes_as_run for edit in node.edits)

    def shown_at(self, node: Node) -> bool:
        """Whether observers see its values at a node."""
        # Log-probabilities are taken as the plan says: from recorded logits, and from what replaces them.
        return self.shows == "computed" or node.op.role.reports or all(value in self.grafts for value in node.values)

    @property
    def plans(self) -> Mapping[Case, Plan]:
        """Its plan in each case of its schedule's phases, and of the weights of its steps. The first one stands for the
        walker where only one is reported.
        """
        cases = [case for phase in self.schedule.phases for case in self.plan.phases if parse(case)[0] == phase]
        return {case: self.plan.at_phase(case) for case in cases if self._has_weights_of(case)}

    def _has_weights_of(self, case: Case) -> bool:
        lags = parse(case)[1].get("lag", ALL)
        return any(map(lags.holds, self.schedule.lags))


class Lane(NamedTuple):
    """The name of a walker that computes the cache of walker `of` anew when the weights `lag` updates back come in."""

    of: WalkerName
    lag: int


def owner(name: WalkerName) -> WalkerName:
    """The walker for which a walker of this name runs: itself, but for a lane."""
    return name.of if isinstance(name, Lane) else name


def with_lanes(walkers: Iterable[Walker], sequences: int, length: int) -> list[Walker]:
    """The walkers; before each whose cache is computed anew at updates of the weights its lanes, from which it takes
    what earlier steps have left. A shadow reads another walker's values, and needs none.
    """
    every: list[Walker] = []
    for walker in walkers:
        if walker.inputs_of is not None or not walker.schedule.recomputes or walker.keys_of:
            every.append(walker)
            continue
        schedule = walker.schedule.on(sequences, length)
        lanes = {lag: Lane(walker.name, lag) for lag in sorted(schedule.lags - {max(schedule.lags)})}
        steps = {lag: recomputed(schedule, lag, sequences, length) for lag in lanes}
        every += [replace(walker, name=lane, schedule=steps[lag]) for lag, lane in lanes.items()]
        every.append(replace(walker, keys_of=lanes))
    return every


class WalkersRefusedError(SpecError):
    """A pass ended because an op refuses what these walkers would compute. The others can run without them."""

    def __init__(self, walkers: Iterable[WalkerName], refusal: RefusedError) -> None:
        super().__init__(str(refusal))
        self.walkers, self.refusal = frozenset(map(owner, walkers)), refusal
