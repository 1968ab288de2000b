"""What every walker has to do at every node, worked out before a pass: numerics, inputs, roundings on edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from moeparity.engine.computation import Numerics, op_numerics, region_numerics
from moeparity.engine.routes import IDS, ORDER, Forced, replayed_plan
from moeparity.engine.walker import Name, Walker
from moeparity.errors import SpecError
from moeparity.ops.declaration import EDGE
from moeparity.plan.bind import BoundGraph
from moeparity.plan.graph import SOURCES, Graph, Node
from moeparity.plan.region import Region
from moeparity.plan.schedule.cases import Case, Sizes, case_of
from moeparity.plan.schedule.steps import MicroBatches, Schedule

Alike = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The routes a task is given behind its inputs: the first `ports` outputs of the router of walker `of`, which it
    computes in each case of its own schedule.
    """

    of: Name
    numerics: Mapping[Case, Numerics]
    ports: int

    def at(self, sizes: Sizes) -> Numerics:
        """What computes them in a step of these sizes."""
        case = case_of(self.numerics, sizes)
        assert case is not None, "they are there for all steps"
        return self.numerics[case]

    @property
    def key(self) -> tuple[object, ...]:
        """Equal where the same routes are given."""
        return (self.of, *((phase, numerics.key) for phase, numerics in self.numerics.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One walker at one node: the values it reads, its numerics, and those of each edge (None: what is stored).

    `history`: of each value, whether a token reads it at all earlier tokens of its sequence too.
    `replay`: of a router with forced routes, where they come from.
    `by_phase`: the tasks of cases in which it is another one.
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
        of_each = zip(*(task.reads for task in self.every), strict=False)
        return tuple(next((value for value in values if value is not None), None) for values in of_each)

    def at(self, sizes: Sizes) -> Task:
        """The task of a step of these sizes."""
        case = case_of(self.by_phase, sizes)
        return self if case is None else self.by_phase[case]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The tasks of a pass, by walker and node.

    No task (None): the node, or what it would read, lies inside a region; or a shadow would read a value in partial
    sums that is whole in its plan, or the other way round, or go along with choices that nobody made before it.

    edge_values: node -> names of the values that single consumers are handed, where some walker rounds on an edge.
    last_use: value -> the node that reads it last, whichever walker it is; `dying` is the same the other way round.
    entering: values that enter a region of some walker.
    regions: node -> the region that closes there, by walker.
    leaders: node -> walker -> the walker that works for it there: one with the same schedule and the same tasks at
        this node and all before it.
    holder: value -> walker -> the walker that has it for this one: its leader at the node that made the value.
    """

    at: Mapping[tuple[Name, str], Task | None]
    edge_values: Mapping[str, tuple[str, ...]]
    last_use: Mapping[str, str]
    dying: Mapping[str, tuple[str, ...]]
    entering: frozenset[str]
    regions: Mapping[str, Mapping[Name, Region]]
    leaders: Mapping[str, Mapping[Name, Name]]
    holder: Mapping[str, Mapping[Name, Name]]

    def holders(self, value: str) -> set[Name]:
        """The walkers that have a value, each for those it leads."""
        return set(self.holder[value].values())

    @classmethod
    def of(cls, walkers: Sequence[Walker], graph: Graph) -> Work:
        """The tasks of these walkers on a graph."""
        alike = _alike(walkers, graph)
        edges = _edges(walkers, graph, alike)
        handed = {f"{producer}{EDGE}{consumer}" for producer, consumers in edges.items() for consumer in consumers}
        hidden = {walker.name: _hidden(walker.plan) for walker in walkers}
        by_name = {walker.name: walker for walker in walkers}
        replayed = {w.name: _replayed_plans(w, by_name[w.routes.of]) for w in walkers if w.routes is not None}
        tasks_of: dict[Alike, Task] = {}
        at: dict[tuple[Name, str], Task | None] = {}
        for walker in walkers:
            source = by_name[walker.inputs_of or walker.name]
            for node in graph.nodes:
                place, kind = (walker.name, node.name), alike[walker.name, node.name]
                if node.name in hidden[walker.name]:
                    at[place] = None
                    continue
                if kind not in tasks_of:
                    tasks_of[kind] = _tasks(walker, node, edges[node.name], handed, replayed.get(walker.name))
                unreadable = _reads_any(tasks_of[kind], hidden[source.name]) or _cut_otherwise(node, walker, source)
                at[place] = None if unreadable else tasks_of[kind]
        last_use: dict[str, str] = {}
        for node in graph.nodes:
            tasks = [task for walker in walkers if (task := at[walker.name, node.name])]
            reads = (value for task in tasks for one in task.every for value in one.reads if value is not None)
            last_use |= dict.fromkeys(reads, node.name)
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


def _first_leaders(walkers: Sequence[Walker]) -> dict[Name, Name]:
    """Per walker the first one with its schedule; a shadow, which keeps no values, follows and leads nobody."""
    first: dict[Schedule | MicroBatches, Name] = {}
    return {w.name: w.name if w.inputs_of is not None else first.setdefault(w.schedule, w.name) for w in walkers}


def _leaders(
    walkers: Sequence[Walker], graph: Graph, at: Mapping[tuple[Name, str], Task | None]
) -> dict[str, dict[Name, Name]]:
    """Per node, who works for whom: groups of walkers that part at the first node where their tasks differ."""
    leaders: dict[str, dict[Name, Name]] = {}
    before = _first_leaders(walkers)
    for node in graph.nodes:
        first: dict[tuple[Name, int], Name] = {}
        # Tasks are shared, so that the same task is the same object.
        parted = {w.name: first.setdefault((before[w.name], id(at[w.name, node.name])), w.name) for w in walkers}
        before = leaders[node.name] = before if parted == before else parted
    return leaders


def _hidden(plan: BoundGraph) -> frozenset[str]:
    """The nodes and values inside a plan's regions, which nobody computes."""
    nodes = {node.name: node for node in plan.graph.nodes}
    inside = {name for name, region in plan.replaced().items() if name != region.nodes[-1]}
    return frozenset(inside | {value for name in inside for value in nodes[name].values})


def _alike(walkers: Sequence[Walker], graph: Graph) -> dict[tuple[Name, str], Alike]:
    """By walker and node, all that its task is made of: most walkers are alike at most nodes, and share one task."""
    kinds: dict[tuple[Name, str], Alike] = {}
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
            values[node.name] += (walker.schedule.phases, _knows_steps(walker.schedule, node))
            values[node.name] += [walker.plan.partials[value] for value in (*node.inputs, *node.values)]
            values[node.name] += [tuple(plan.told_to(node).items()) for plan in plans.values()]
            values[node.name] += [walker.routes] if node.op.routes else []
            # Whoever is given a value that was recorded parts from all that are not, or see it otherwise.
            grafts = [id(walker.grafts[value]) for value in node.values if value in walker.grafts]
            values[node.name] += [*grafts, walker.shows] if grafts else []
            kinds[walker.name, node.name] = tuple(values[node.name])
    return kinds


def _reads_any(task: Task, values: frozenset[str]) -> bool:
    """Whether a task reads one of these values, be it as an edge hands it."""
    reads = (value for one in task.every for value in one.reads)
    return any(value is not None and value.partition(EDGE)[0] in values for value in reads)


def _cut_otherwise(node: Node, walker: Walker, source: Walker) -> bool:
    """Whether a shadow would read partial sums that its plan does not know, or a whole value in their place; or what
    was made by an op that left its node another part of the work than its plan says, in any of its phases.
    """
    if walker is source:
        return False
    theirs = source.plans.values()
    return any(_cut_otherwise_in(node, plan, other) for plan in walker.plans.values() for other in theirs)


def _cut_otherwise_in(node: Node, plan: BoundGraph, source: BoundGraph) -> bool:
    if plan is source:
        return False
    cut = any(plan.partials[value] != source.partials[value] for value in node.inputs)
    if cut or plan.told_to(node) != source.told_to(node):
        return True
    if not node.op.reduces:
        return False
    # A library may not know the dtype of the other's partial sums.
    makers = {value: maker for maker in plan.graph.nodes for value in maker.values}
    return plan.message_dtype(node, makers) != source.message_dtype(node, makers)


def _edges(
    walkers: Sequence[Walker], graph: Graph, alike: Mapping[tuple[Name, str], Alike]
) -> dict[str, tuple[str, ...]]:
    """Per node, the consumers that some walker hands another rounding than the one stored."""
    edges = {}
    for node in graph.nodes:
        ways = {alike[walker.name, node.name]: walker for walker in walkers}.values()
        plans = (plan for walker in ways for plan in walker.plans.values())
        edges[node.name] = tuple(dict.fromkeys(consumer for plan in plans for consumer in plan.edges(node)))
    return edges


def _replayed_plans(walker: Walker, source: Walker) -> dict[Case, dict[Case, BoundGraph]]:
    """By a forced walker's phase and the phase of the walker whose routes it takes over: what makes them."""
    plans = {phase: replayed_plan(plan, source.plan) for phase, plan in walker.plans.items()}
    return {phase: {theirs: plan.at_phase(theirs) for theirs in source.plans} for phase, plan in plans.items()}


def _tasks(
    walker: Walker,
    node: Node,
    edges: Sequence[str],
    handed: set[str],
    replayed: Mapping[Case, Mapping[Case, BoundGraph]] | None,
) -> Task:
    """The task of a walker at a node in the first phase of its schedule, with those of phases where it is another."""
    tasks = {}
    # Most phases have one plan.
    of_plan: dict[int, Task] = {}
    for phase, plan in walker.plans.items():
        if id(plan) not in of_plan:
            of_plan[id(plan)] = _task(walker, plan, node, edges, handed)
        task = of_plan[id(plan)]
        if walker.routes is not None and replayed is not None and node.op.routes:
            task = _replaying(task, node, walker.routes, replayed[phase])
        tasks[phase] = task
    first, *others = tasks
    kind = _kind(tasks[first])
    by_phase = {phase: tasks[phase] for phase in others if _kind(tasks[phase]) != kind}
    return replace(tasks[first], by_phase=by_phase) if by_phase else tasks[first]


def _kind(task: Task) -> tuple[object, ...]:
    """What tells tasks of a walker at one node apart."""
    replay = None if task.replay is None else task.replay.key
    return (task.numerics.key, task.reads, replay, *(edge and edge.key for edge in task.edges))


def _task(walker: Walker, plan: BoundGraph, node: Node, edges: Sequence[str], handed: set[str]) -> Task:
    region = plan.region(node.name)
    # A node's values with an edge of their rounded_edges are single and carry the node's name.
    inputs = plan.read_inputs(node)
    reads = tuple(v if v is None else _handed(v, node, region, handed) for v in inputs)
    earlier = {value for port, value in zip(node.ports, node.inputs, strict=True) if port in node.op.history}
    history = tuple(value in earlier for value in inputs)
    if region is not None:
        _refuse_history(walker, region)
        numerics = region_numerics(plan, node, region, walker.functions[region.call])
        return Task(reads=reads, history=history, numerics=numerics, edges=(None,) * len(edges))
    rounded_edges = plan.edges(node)
    numerics = op_numerics(plan, node, {})
    if _knows_steps(walker.schedule, node):
        numerics = replace(numerics, sees_rows=True)
    return Task(
        reads=reads,
        history=history,
        numerics=numerics,
        edges=tuple(op_numerics(plan, node, dict([rounded_edges[c]])) if c in rounded_edges else None for c in edges),
    )


def _knows_steps(schedule: Schedule | MicroBatches, node: Node) -> bool:
    """Whether a node's values go by the steps of a schedule even where no row sees another: a pack says what its tokens
    see and where they lie among keys, and what is copied is another token's value, not what its own token would give.
    """
    if node.op.history:
        return schedule.has_packs or schedule.has_copies
    return schedule.has_copies and any(value in SOURCES for value in node.inputs)


def _refuse_history(walker: Walker, region: Region) -> None:
    """A function in place of several nodes is not handed the keys that attention inside it would read."""
    nodes = [node for node in walker.plan.graph.nodes if node.name in region.nodes]
    if walker.schedule.has_history and len(nodes) > 1 and any(node.op.history for node in nodes):
        raise SpecError(
            f"{region.where}: impl {region.call} stands in place of attention and other nodes, and this side's "
            "schedule has steps that read keys of earlier ones, which it would not be given. "
            "Let it stand in place of the attention node alone, or leave `schedule` out."
        )


def _replaying(task: Task, node: Node, forced: Forced, sources: Mapping[Case, BoundGraph]) -> Task:
    """A router's task with what `forced` says of it taken over from a walker with these plans, by its own phases."""
    replay = Replay(
        of=forced.of,
        numerics={phase: op_numerics(source, node, {}) for phase, source in sources.items()},
        ports=1 if forced.what == IDS else 2,
    )
    numerics = task.numerics
    if forced.what != ORDER:
        key = (*numerics.key, ("routes", forced.what))
        return replace(task, numerics=replace(numerics, key=key), replay=replay)
    # Nothing is computed, and the own logits are not read. The first of the phases speaks for what took effect.
    theirs = next(iter(replay.numerics.values()))
    handed = replace(
        theirs,
        key=(replay.key, ("routes", ORDER)),
        partials=1,
        compute=lambda tensors, *_: tuple(t for t in tensors if t is not None),
        joins=False,
    )
    return replace(task, reads=(None,) * len(task.reads), numerics=handed, replay=replay)


def _handed(value: str, node: Node, region: Region | None, handed: set[str]) -> str:
    """The value as this node is handed it; a region is handed what the first of its nodes is that has an own edge."""
    for reader in (node.name,) if region is None else region.nodes:
        if f"{value}{EDGE}{reader}" in handed:
            return f"{value}{EDGE}{reader}"
    return value
