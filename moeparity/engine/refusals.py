"""Which walkers cannot run a pass, worked out before it from shapes alone: which kernel calls an op refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from moeparity.engine.liveness import Values
from moeparity.engine.task import Task
from moeparity.engine.turns import NodeTurns
from moeparity.engine.walker import Walker, WalkerName, owner
from moeparity.ops.attribute import RefusedError
from moeparity.ops.memory import Call
from moeparity.plan.graph import Graph, Node


def refusals(
    walkers: Sequence[Walker], graph: Graph, sequences: int, length: int, arch: str | None = None
) -> Mapping[WalkerName, tuple[RefusedError, ...]]:
    """By walker, and node by node, the first call over [sequences, length] tokens that an op refuses. A walker that can
    run has none. arch: the GPU, such as `sm90`; None for a CPU.
    """
    calls = _Calls(walkers, graph, sequences, length, arch)
    refused: dict[WalkerName, tuple[RefusedError, ...]] = {}
    for node in graph.nodes:
        if node.op.refusals.call is not None:
            for name, refusal in calls.refused_at(node).items():
                refused[name] = (*refused.get(name, ()), refusal)
    return refused


class _Calls:
    """The kernel calls of a pass, one by one, as `engine.lockstep` will make them."""

    def __init__(self, walkers: Sequence[Walker], graph: Graph, sequences: int, length: int, arch: str | None) -> None:
        self.values, self.arch = Values(walkers, graph, sequences, length), arch
        self.turns = NodeTurns(self.values.grid, graph, self.values.grid.schedules)

    def refused_at(self, node: Node) -> dict[WalkerName, RefusedError]:
        """The walkers that are refused at a node."""
        refused: dict[WalkerName, RefusedError] = {}
        of_call: dict[tuple[object, ...], tuple[str, str] | None] = {}
        for walker in self.values.walkers:
            task = self.values.work.at[walker.name, node.name]
            if task is None or walker.plan.region(node.name) is not None:
                continue
            # Tasks are shared, so that the same task is the same object.
            message = walker.plan.message_dtype(node) if node.op.role.reduces else None
            key = (id(task), walker.schedule, message, *self.values.input_bytes(walker, task))
            if key not in of_call:
                assert node.op.refusals.call is not None
                answers = map(node.op.refusals.call, self._calls(walker, node, task))
                of_call[key] = next((answer for answer in answers if answer is not None), None)
            refusal = of_call[key]
            if refusal is not None:
                refused.setdefault(owner(walker.name), walker.plan.refusal(node, *refusal))
        return refused

    def _calls(self, walker: Walker, node: Node, task: Task) -> Iterator[Call]:
        """A walker's calls at a node that differ in what they compute, in rows or in keys."""
        as_run = walker.plan.as_run(node)
        for todo, rows, keys in dict.fromkeys(self._sizes(walker, node, task)):
            of_task = next(of for of in task.every if id(of) == todo)
            input_bytes = self.values.input_bytes(walker, of_task)
            call = self.values.call(walker, as_run, of_task.numerics, of_task.reads, input_bytes)
            message = walker.plan.message_dtype(node) if node.op.role.reduces else None
            yield replace(call, tokens=rows, length=keys, message=message, arch=self.arch)

    def _sizes(self, walker: Walker, node: Node, task: Task) -> Iterator[tuple[int, int, int]]:
        """For each call: the id of its task, its rows, and the most keys that these read."""
        for wave in self.values.grid.waves:
            for turn in self.turns.at(walker.schedule, node, task, wave):
                if turn.source is not None:
                    continue
                sizes = turn.sizes
                todo = task.at(sizes) if task.by_phase else task
                if not any(task.history) and node.op.tokens.state is None:
                    yield id(todo), sizes.rows, sizes.keys
                    continue
                for queries in turn.queries(varlen=todo.numerics.varlen or node.op.tokens.state is not None):
                    of_queries = turn.sizes_of(queries, sizes)
                    yield id(task.at(of_queries) if task.by_phase else task), of_queries.rows, of_queries.keys
