"""What one walker does at one node: which values it reads, its numerics, roundings on edges, and forced routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from moeparity.engine.computation import Numerics, op_numerics, region_numerics
from moeparity.engine.routes import IDS, IDS_AND_KEYS, LOGITS, ORDER, Forced, Recorded, replayed_plan, takes_over
from moeparity.engine.walker import Walker, WalkerName
from moeparity.errors import SpecError
from moeparity.ops.attribute import EDGE
from moeparity.plan.bound import Plan
from moeparity.plan.graph import SOURCES, Node
from moeparity.plan.region import Region
from moeparity.plan.schedule.cases import Case, Sizes, case_of
from moeparity.plan.schedule.steps import MicroBatches, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Routes that a task is given after its inputs: the first `ports` outputs of the router of walker `of`. That walker
    computes them in each case of its own schedule; of a record there is nothing to compute. Without ports the task is
    given that walker's inputs in place of its own.
    """

    of: WalkerName | Recorded
    numerics: Mapping[Case, Numerics]
    ports: int

    def at(self, sizes: Sizes) -> Numerics:
        """What computes them in a step of these sizes."""
        case = case_of(self.numerics, sizes)
        assert case is not None, "they are there for all steps"
        return self.numerics[case]

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for two replays that give the same routes."""
        return (self.of, self.ports, *((phase, numerics.key) for phase, numerics in self.numerics.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One walker at one node: the values it reads, its numerics, and the numerics of each edge (None: the consumer
    reads the stored value).

    history: for each value, whether a token also reads it at all earlier tokens of its sequence.
    replay: for a router with forced routes, where these come from.
    by_phase: the tasks of the cases in which the task is another one.
    """

    reads: tuple[str | None, ...]
    history: tuple[bool, ...]
    numerics: Numerics
    edges: tuple[Numerics | None, ...]
    replay: Replay | None = None
    by_phase: Mapping[Case, Task] = field(default_factory=dict)

    @property
    def every(self) -> tuple[Task, ...]:
        """This task, and those of other phases."""
        return (self, *self.by_phase.values())

    @property
    def reads_of_all(self) -> tuple[str | None, ...]:
        """The values that it reads in some phase."""
        if not self.by_phase:
            return self.reads
        of_each = zip(*(task.reads for task in self.every), strict=False)
        return tuple(next((value for value in values if value is not None), None) for values in of_each)

    def at(self, sizes: Sizes) -> Task:
        """The task of a step of these sizes."""
        case = case_of(self.by_phase, sizes)
        return self if case is None else self.by_phase[case]


def replayed_plans(walker: Walker, source: Walker | None) -> dict[Case, dict[Case, Plan]]:
    """The plan that makes the routes, by case of the forced walker and by case of the walker they are taken from; of a
    record (None), no plan. Raises SpecError where a walker's routes cannot be forced.
    """
    if source is None:
        return {phase: {} for phase, plan in walker.plans.items() if replayed_plan(plan, plan)}
    plans = {phase: replayed_plan(plan, source.plan) for phase, plan in walker.plans.items()}
    return {phase: {theirs: plan.at_phase(theirs) for theirs in source.plans} for phase, plan in plans.items()}


def task_of(
    walker: Walker,
    node: Node,
    edges: Sequence[str],
    handed: set[str],
    replayed: Mapping[Case, Mapping[Case, Plan]] | None,
) -> Task:
    """The task of a walker at a node in the first phase of its schedule, with the tasks of other phases if they differ.

    `edges` are the consumers of the node that are given values of their own, `handed` the names of all such values,
    `replayed` what `replayed_plans` gives. Raises SpecError if a user's function would be given something that it does
    not take.
    """
    tasks = {}
    # Most phases have one plan.
    of_plan: dict[int, Task] = {}
    for phase, plan in walker.plans.items():
        if id(plan) not in of_plan:
            of_plan[id(plan)] = _task(walker, plan, node, edges, handed)
        task = of_plan[id(plan)]
        if walker.routes is not None and replayed is not None and takes_over(walker.routes.replayed, node.op.role):
            task = _replaying(task, node, walker.routes, replayed[phase])
        tasks[phase] = task
    first, *others = tasks
    kind = _kind(tasks[first])
    by_phase = {phase: tasks[phase] for phase in others if _kind(tasks[phase]) != kind}
    return replace(tasks[first], by_phase=by_phase) if by_phase else tasks[first]


def _kind(task: Task) -> tuple[object, ...]:
    """What distinguishes the tasks of a walker at one node."""
    replay = None if task.replay is None else task.replay.key
    return (task.numerics.key, task.reads, replay, *(edge and edge.key for edge in task.edges))


def _task(walker: Walker, plan: Plan, node: Node, edges: Sequence[str], handed: set[str]) -> Task:
    region = plan.region(node.name)
    # A node's values with an edge of their rounded_edges are single and carry the node's name.
    inputs = plan.read_inputs(node)
    reads = tuple(v if v is None else _handed(v, node, region, handed) for v in inputs)
    earlier = {value for port, value in zip(node.ports, node.inputs, strict=True) if port in node.op.tokens.history}
    history = tuple(value in earlier for value in inputs)
    if region is not None:
        _refuse_history(walker, region)
        numerics = region_numerics(plan, node, region, walker.functions[region.call])
        return Task(reads=reads, history=history, numerics=numerics, edges=(None,) * len(edges))
    _refuse_rejected(walker, node)
    rounded_edges = plan.edges(node)
    numerics = op_numerics(plan, node, {})
    if knows_steps(walker.schedule, node):
        numerics = replace(numerics, sees_rows=True)
    return Task(
        reads=reads,
        history=history,
        numerics=numerics,
        edges=tuple(op_numerics(plan, node, dict([rounded_edges[c]])) if c in rounded_edges else None for c in edges),
    )


def knows_steps(schedule: Schedule | MicroBatches, node: Node) -> bool:
    """Whether a node's values depend on the steps of a schedule even if no row depends on the others. A pack decides
    what its tokens see and where they lie among the keys; a copied token has another token's value, not the one
    computed for it.
    """
    if node.op.tokens.history:
        return schedule.has_packs or schedule.has_copies
    return schedule.has_copies and any(value in SOURCES for value in node.inputs)


def _refuse_history(walker: Walker, region: Region) -> None:
    """Refuses a user's function in place of several nodes if attention inside it would read keys of earlier steps,
    which it is not given; and in place of a node that would take over a state, or begin anew within a row.
    """
    nodes = [node for node in walker.plan.graph.nodes if node.name in region.nodes]
    stateful = next((node for node in nodes if node.op.tokens.state is not None), None)
    if stateful is not None and _has_borders(walker.schedule):
        raise SpecError(
            f"{region.where}: impl {region.call} stands in place of {stateful.name}, op {stateful.op.name}, which "
            "takes a state over from step to step and begins anew with each sequence of a row; a function is given "
            "neither the state nor these borders. Leave `schedule` out, or the function."
        )
    if walker.schedule.has_history and len(nodes) > 1 and any(node.op.tokens.history for node in nodes):
        raise SpecError(
            f"{region.where}: impl {region.call} stands in place of attention and other nodes, and this side's "
            "schedule has steps that read keys of earlier ones, which it would not be given. "
            "Let it stand in place of the attention node alone, or leave `schedule` out."
        )


def _refuse_rejected(walker: Walker, node: Node) -> None:
    """Refuses rejected drafts where a state would have to go back to the last accepted one."""
    if node.op.tokens.state is not None and walker.schedule.rejects_drafts:
        raise SpecError(
            f"schedule: {node.name}, op {node.op.name}, takes a state over from step to step, and its state before a "
            "rejected draft is not known here. Leave `schedule` out, or let all drafts be accepted: `verify`."
        )


def _has_borders(schedule: Schedule | MicroBatches) -> bool:
    """Whether steps begin or end within sequences, or rows of several sequences lie one after the other."""
    rows_apart = isinstance(schedule, MicroBatches) or all(step.shape == "dense" for step in schedule.steps)
    return schedule.has_history or not rows_apart


def _replaying(task: Task, node: Node, forced: Forced | Recorded, sources: Mapping[Case, Plan]) -> Task:
    """A router's or an indexer's task with its choices taken over, as `forced` says, from a record or from a walker
    that has these plans in its cases.
    """
    replay = Replay(
        of=forced if isinstance(forced, Recorded) else forced.of,
        numerics={phase: op_numerics(source, node, {}) for phase, source in sources.items()},
        ports=1 if node.op.role.picks else {IDS: 1, IDS_AND_KEYS: 1, LOGITS: 0}.get(forced.replayed, 2),
    )
    numerics = task.numerics
    if forced.replayed == LOGITS:
        # Its numerics are the router's own: of equal logits it makes what the same router makes elsewhere.
        return replace(task, replay=replay)
    if forced.replayed != ORDER and not node.op.role.picks:
        key = (*numerics.key, ("routes", forced.replayed))
        return replace(task, numerics=replace(numerics, key=key), replay=replay)
    # Nothing is computed, and the walker's own logits are not read. For the choices in effect, the first phase is
    # reported.
    theirs = next(iter(replay.numerics.values()), numerics)
    handed = replace(
        theirs,
        key=(replay.key, ("routes", ORDER)),
        partials=1,
        compute=lambda call_inputs: tuple(tensor for tensor in call_inputs.tensors if tensor is not None),
        joins=False,
    )
    unread = len(task.reads)
    return replace(task, reads=(None,) * unread, history=(False,) * unread, numerics=handed, replay=replay)


def _handed(value: str, node: Node, region: Region | None, handed: set[str]) -> str:
    """The name under which this node is given the value. A region gets the one meant for the first of its nodes that is
    given a value of its own.
    """
    for reader in (node.name,) if region is None else region.nodes:
        if f"{value}{EDGE}{reader}" in handed:
            return f"{value}{EDGE}{reader}"
    return value
