"""Which tokens go through a node together, for each walker: the steps of its schedule, or a whole wave at once."""

from __future__ import annotations

from collections.abc import Iterable

from moeparity.engine.batch import Rows
from moeparity.engine.grid import Grid, Turn
from moeparity.engine.task import Task
from moeparity.plan.attention_groups import computed_apart
from moeparity.plan.graph import Graph, Node
from moeparity.plan.schedule.steps import MicroBatches, Schedule


class NodeTurns:
    """The turns of every schedule of a grid at each node of a graph."""

    def __init__(self, grid: Grid, graph: Graph, schedules: Iterable[Schedule | MicroBatches]) -> None:
        self.grid = grid
        every = {schedule.groups for schedule in schedules}
        self._apart = {
            groups: computed_apart(graph, groups.gathered) if groups.count > 1 else frozenset() for groups in every
        }

    def at(self, schedule: Schedule | MicroBatches, node: Node, task: Task, wave: Rows) -> tuple[Turn, ...]:
        """The turns of a walker with this task: all tokens of a wave if no row depends on others, or if pairs of
        sequences do, else its steps.
        """
        # Groups that attend apart add up their own partial sums.
        sums_apart = node.op.role.reduces and self.is_apart(schedule, node)
        once = not task.numerics.sees_rows and not task.by_phase and not sums_apart
        if once or node.op.tokens.pairs:
            return (Turn(self.grid.whole(wave), schedule.phases[0]),)
        return self.steps(schedule, node, wave)

    def steps(self, schedule: Schedule | MicroBatches, node: Node, wave: Rows) -> tuple[Turn, ...]:
        """The steps of a schedule at a node; under data-parallel attention those of each group."""
        grid, is_head = self.grid, node.op.role.family == "head"
        if self.is_apart(schedule, node):
            return (grid.head_apart if is_head else grid.apart)[schedule][wave]
        return (grid.head_turns if is_head else grid.turns)[schedule][wave]

    def is_apart(self, schedule: Schedule | MicroBatches, node: Node) -> bool:
        """Whether each group of ranks computes a node for its own sequences only."""
        return node.name in self._apart[schedule.groups]
