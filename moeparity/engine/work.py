"""The tasks of all walkers at every node, worked out before a pass, and which walkers work for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from moeparity.engine.routes import Forced
from moeparity.engine.task import Task, knows_steps, replayed_plans, task_of
from moeparity.engine.walker import Walker, WalkerName
from moeparity.ops.attribute import EDGE
from moeparity.plan.bound import Plan
from moeparity.plan.graph import SOURCES, Graph, Node
from moeparity.plan.latest import Latest
from moeparity.plan.region import Region

Alike = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The tasks of a pass, by walker and node.

    There is no task (None) if the node, or a value that it would read, lies inside a region. A shadow has no task
    either if it skips the node; if it would read partial sums where its plan has a whole value, or the other way round;
    if it would take states over that the walker it reads from does not hand on; or if the op depends on a choice that
    that walker made differently.

    edge_values: node -> names of the values that single consumers are given, if some walker rounds on an edge.
    last_use: value -> the last node that reads it, in any walker; `dying` is the same from node to values.
    entering: values that enter a region of some walker.
    regions: node -> the region that closes there, by walker.
    leaders: node -> walker -> the walker that works for it there: one with the same schedule and the same tasks at this
        node and at all nodes before it.
    holder: value -> walker -> the walker that keeps the value for it: its leader at the node that made the value.
    """

    at: Mapping[tuple[WalkerName, str], Task | None]
    edge_values: Mapping[str, tuple[str, ...]]
    last_use: Mapping[str, str]
    dying: Mapping[str, tuple[str, ...]]
    entering: frozenset[str]
    regions: Mapping[str, Mapping[WalkerName, Region]]
    leaders: Mapping[str, Mapping[WalkerName, WalkerName]]
    holder: Mapping[str, Mapping[WalkerName, WalkerName]]

    def holders(self, value: str) -> set[WalkerName]:
        """The walkers that keep a value, each for itself and those it leads."""
        return set(self.holder[value].values())

    @classmethod
    def of(cls, walkers: Sequence[Walker], graph: Graph) -> Work:
        """The tasks of these walkers on a graph."""
        if any(walker.functions or walker.routes or walker.grafts for walker in walkers):
            return cls._of(walkers, graph)
        # Only these parts of a schedule matter here: its phases, what its steps consist of, and which walkers share it.
        schedules = list(dict.fromkeys(walker.schedule for walker in walkers))
        kinds = tuple((of.phases, of.lags, of.has_packs, of.has_copies) for of in schedules)
        words = tuple(
            (w.name, w.inputs_of, tuple(w.keys_of.items()), w.shows, w.skips, schedules.index(w.schedule))
            for w in walkers
        )
        plans = [walker.plan for walker in walkers]
        return _LATEST.of((graph, *plans), (kinds, words), lambda: cls._of(walkers, graph))

    @classmethod
    def _of(cls, walkers: Sequence[Walker], graph: Graph) -> Work:
        alike = _alike(walkers, graph)
        edges = _edges(walkers, graph, alike)
        handed = {f"{producer}{EDGE}{consumer}" for producer, consumers in edges.items() for consumer in consumers}
        hidden = {walker.name: _hidden(walker.plan) for walker in walkers}
        by_name = {walker.name: walker for walker in walkers}
        replayed = {w.name: replayed_plans(w, _replayed_of(w, by_name)) for w in walkers if w.routes is not None}
        tasks_of: dict[Alike, Task] = {}
        at: dict[tuple[WalkerName, str], Task | None] = {}
        for walker in walkers:
            source = by_name[walker.inputs_of or walker.name]
            for node in graph.nodes:
                place, kind = (walker.name, node.name), alike[walker.name, node.name]
                if node.name in hidden[walker.name] or node.name in walker.skips:
                    at[place] = None
                    continue
                if kind not in tasks_of:
                    tasks_of[kind] = task_of(walker, node, edges[node.name], handed, replayed.get(walker.name))
                unreadable = _reads_any(tasks_of[kind], hidden[source.name]) or _cut_otherwise(node, walker, source)
                at[place] = None if unreadable or _has_no_state(node, walker, source) else tasks_of[kind]
        last_use: dict[str, str] = {}
        for node in graph.nodes:
            tasks = [task for walker in walkers if (task := at[walker.name, node.name])]
            reads = (
                value for task in tasks for of_phase in task.every for value in of_phase.reads if value is not None
            )
            last_use |= dict.fromkeys((value for value in reads if value is not None), node.name)
        dying: dict[str, list[str]] = {node.name: [] for node in graph.nodes}
        for value, node_name in last_use.items():
            dying[node_name].append(value)
        edge_values = {n.name: tuple(f"{n.values[0]}{EDGE}{reader}" for reader in edges[n.name]) for n in graph.nodes}
        first, leaders = _first_leaders(walkers), _leaders(walkers, graph, at)
        holder = dict.fromkeys(SOURCES, first)
        holder |= {v: leaders[n.name] for n in graph.nodes for v in (*n.values, *edge_values[n.name])}
        return cls(
            at=at,
            edge_values=edge_values,
            last_use=last_use,
            dying={name: tuple(values) for name, values in dying.items()},
            entering=frozenset(v for w in walkers for r in w.plan.replaced().values() for v in r.inputs),
            regions={
                n.name: {w.name: r for w in walkers if (r := w.plan.region(n.name)) is not None} for n in graph.nodes
            },
            leaders=leaders,
            holder=holder,
        )


_LATEST: Final[Latest[Work]] = Latest(8)
"""One plan is walked again and again, over other tokens."""


def _first_leaders(walkers: Sequence[Walker]) -> dict[WalkerName, WalkerName]:
    """For each walker the first one with the same schedule that takes keys of the same walkers. A shadow keeps no
    values: it follows and leads nobody.
    """
    first: dict[tuple[object, ...], WalkerName] = {}
    return {
        w.name: w.name if w.inputs_of is not None else first.setdefault((w.schedule, *w.keys_of.items()), w.name)
        for w in walkers
    }


def _leaders(
    walkers: Sequence[Walker], graph: Graph, at: Mapping[tuple[WalkerName, str], Task | None]
) -> dict[str, dict[WalkerName, WalkerName]]:
    """For each node, which walkers work for others: groups of walkers that part at the first node where their tasks
    differ.
    """
    leaders: dict[str, dict[WalkerName, WalkerName]] = {}
    before = _first_leaders(walkers)
    for node in graph.nodes:
        first: dict[tuple[WalkerName, int], WalkerName] = {}
        # Tasks are shared, so that the same task is the same object.
        parted = {w.name: first.setdefault((before[w.name], id(at[w.name, node.name])), w.name) for w in walkers}
        before = leaders[node.name] = before if parted == before else parted
    return leaders


def _replayed_of(walker: Walker, by_name: Mapping[WalkerName, Walker]) -> Walker | None:
    """The walker from which a walker takes routes over; None for a record."""
    return by_name[walker.routes.of] if isinstance(walker.routes, Forced) else None


def _hidden(plan: Plan) -> frozenset[str]:
    """The nodes and values inside a plan's regions, which nobody computes."""
    nodes = {node.name: node for node in plan.graph.nodes}
    inside = {name for name, region in plan.replaced().items() if name != region.nodes[-1]}
    return frozenset(inside | {value for name in inside for value in nodes[name].values})


def _alike(walkers: Sequence[Walker], graph: Graph) -> dict[tuple[WalkerName, str], Alike]:
    """By walker and node, everything that a task is made from. Most walkers are alike at most nodes, and share one
    task.
    """
    kinds: dict[tuple[WalkerName, str], Alike] = {}
    for walker in walkers:
        values: dict[str, list[object]] = {node.name: [node.name] for node in graph.nodes}
        for (node_name, attribute), setting in walker.plan.settings.items():
            values[node_name] += (attribute, setting.value)
        for (closing, _), region in walker.plan.regions.items():
            values[closing].append(region.nodes)
        plans = walker.plans
        for phase, plan in plans.items():
            for (node_name, attribute), setting in plan.settings.items() if plan is not walker.plan else ():
                if setting.value != walker.plan.settings[node_name, attribute].value:
                    values[node_name] += (phase, attribute, setting.value)
        for node in graph.nodes:
            values[node.name] += (walker.schedule.phases, walker.schedule.lags, knows_steps(walker.schedule, node))
            values[node.name] += [walker.plan.partials[value] for value in (*node.inputs, *node.values)]
            values[node.name] += [tuple(plan.told_to(node).items()) for plan in plans.values()]
            values[node.name] += [walker.routes] if node.op.role.routes or node.op.role.picks else []
            # A walker that is given a recorded value has other tasks than one that is not, or whose observers see it
            # differently.
            grafts = [id(walker.grafts[value]) for value in node.values if value in walker.grafts]
            values[node.name] += [*grafts, walker.shows] if grafts else []
            kinds[walker.name, node.name] = tuple(values[node.name])
    return kinds


def _reads_any(task: Task, values: frozenset[str]) -> bool:
    """Whether a task reads one of these values, in any rounding."""
    reads = (value for of_phase in task.every for value in of_phase.reads)
    return any(value is not None and value.partition(EDGE)[0] in values for value in reads)


def _has_no_state(node: Node, walker: Walker, source: Walker) -> bool:
    """Whether a shadow would take states over from a user's function, which hands none on."""
    replaced = walker is not source and node.op.tokens.state is not None and node.name in source.plan.replaced()
    return replaced and walker.schedule.has_history


def _cut_otherwise(node: Node, walker: Walker, source: Walker) -> bool:
    """Whether a shadow would read partial sums that its plan does not have, or a whole value instead of them; or a
    value from an op that, in some phase, left this node another part of the work than the shadow's plan says.
    """
    if walker is source:
        return False
    theirs = source.plans.values()
    return any(_cut_otherwise_in(node, plan, their_walker) for plan in walker.plans.values() for their_walker in theirs)


def _cut_otherwise_in(node: Node, plan: Plan, source: Plan) -> bool:
    if plan is source:
        return False
    cut = any(plan.partials[value] != source.partials[value] for value in node.inputs)
    if cut or plan.told_to(node) != source.told_to(node):
        return True
    if not node.op.role.reduces:
        return False
    # A library may not know the dtype of the other's partial sums.
    return plan.message_dtype(node) != source.message_dtype(node)


def _edges(
    walkers: Sequence[Walker], graph: Graph, alike: Mapping[tuple[WalkerName, str], Alike]
) -> dict[str, tuple[str, ...]]:
    """For each node, the consumers to which some walker gives another rounding than the stored one."""
    edges = {}
    for node in graph.nodes:
        ways = {alike[walker.name, node.name]: walker for walker in walkers}.values()
        plans = (plan for walker in ways for plan in walker.plans.values())
        edges[node.name] = tuple(dict.fromkeys(consumer for plan in plans for consumer in plan.edges(node)))
    return edges
