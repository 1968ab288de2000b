"""Which values can differ between walkers, how many bytes of them are alive at each node, and what kernels need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from moeparity.engine.computation import Numerics
from moeparity.engine.grid import Grid
from moeparity.engine.joined import joined_rows
from moeparity.engine.task import Task
from moeparity.engine.walker import Walker, WalkerName, with_lanes
from moeparity.engine.work import Work
from moeparity.ops.attribute import EDGE
from moeparity.ops.memory import INTEGER, Call
from moeparity.plan.graph import SOURCES, Graph, Node, Segment
from moeparity.plan.schedule.steps import MicroBatches, Schedule
from moeparity.plan.token_shapes import token_shapes, weight_shapes

_LOADS = 1.5
"""How many different numbers of rows experts get, in units of the mean number."""


class _Value(NamedTuple):
    """A walker's value as it is counted here: a number that is equal for values that must be equal, and the bytes of
    one element.
    """

    number: int
    size: int


class Values:
    """Which values can differ between walkers, and how many bytes of them are alive at each node."""

    def __init__(self, walkers: Sequence[Walker], graph: Graph, sequences: int, length: int) -> None:
        self.walkers = walkers = with_lanes(walkers, sequences, length)
        self.graph, self.work, self.sequences, self.length = graph, Work.of(walkers, graph), sequences, length
        self.grid = grid = Grid.of(walkers, sequences, length)
        self.wave = max(last - first for first, last in grid.waves)
        # By schedule: how many steps have how many rows.
        self.rows = {key: Counter(step.rows for step in schedule.steps) for key, schedule in grid.schedules.items()}
        # By schedule: the most rows that go through an op that computes several steps at once.
        self.joined = {key: max(*rows, joined_rows(rows)) for key, rows in self.rows.items()}
        self.dtypes = tuple(dict.fromkeys(dtype for walker in walkers for dtype in walker.plan.dtypes))
        shapes = token_shapes(graph)
        self.widths = {value: shape.numbers for value, shape in shapes.items()}
        self.heads = {value: shape.heads or 1 for value, shape in shapes.items()}
        # By walker and name.
        self.values: dict[tuple[WalkerName, str], _Value] = {}
        self.numbers: dict[object, int] = {}
        # Bytes per token of all different values of a name, and of all outputs of a node; bytes of scratch memory of a
        # node.
        self.value_bytes: dict[str, int] = {}
        self.output_bytes: dict[str, int] = {}
        self.scratch: dict[str, int] = {}
        # By node: bytes of the states that are handed on from step to step.
        self.state_bytes: dict[str, int] = {}
        # By node: the kernel calls of each piece of work that can differ between walkers, by their rows, and how often
        # each is made.
        self.calls: dict[str, dict[int, list[tuple[Call, int]]]] = {}
        # The different pieces of work at nodes with 16-bit GEMMs, by what decides their shapes, with the number of
        # calls of each.
        self.gemms: dict[tuple[str, int, str], dict[int, int]] = {}
        for walker in walkers:
            numbers = {source: self._number((source, walker.schedule, *walker.keys_of.items())) for source in SOURCES}
            self.values |= {(walker.name, source): _Value(number, INTEGER) for source, number in numbers.items()}
        # By walker, the schedules of its shadows, and of those that take its keys.
        self.taken_by: dict[WalkerName, set[Schedule | MicroBatches]] = {}
        self.ends: dict[frozenset[Schedule | MicroBatches], int] = {}
        for walker in walkers:
            if walker.inputs_of is not None:
                self.taken_by.setdefault(walker.inputs_of, set()).add(walker.schedule)
            for giver in walker.keys_of.values():
                self.taken_by.setdefault(giver, set()).add(walker.schedule)
        ordered = sorted(walkers, key=lambda walker: walker.inputs_of is not None)
        for node in graph.nodes:
            self._walk(node, ordered)

    def _number(self, kind: object) -> int:
        return self.numbers.setdefault(kind, len(self.numbers))

    def _walk(self, node: Node, walkers: Sequence[Walker]) -> None:
        # By value, the bytes per token of each number.
        plain: dict[str, dict[int, int]] = {}
        shadows: dict[str, dict[int, int]] = {}
        computed: dict[tuple[object, ...], dict[str, _Value]] = {}
        self.scratch[node.name] = 0
        for walker in walkers:
            task = self.work.at[walker.name, node.name]
            if task is None:
                continue
            inputs = [None if v is None else self.values[walker.inputs_of or walker.name, v] for v in task.reads]
            sizes = plain if walker.inputs_of is None else shadows
            # Tasks are shared, so that the same task is the same object.
            key = (id(task), walker.schedule, walker.inputs_of is None, *inputs)
            if key not in computed:
                computed[key] = self._computed(walker, node, task, inputs, sizes)
            if walker.inputs_of is None:
                self.values |= {(walker.name, name): value for name, value in computed[key].items()}
        self.value_bytes |= {value: sum(sizes.values()) for value, sizes in plain.items()}
        outputs = {value: sizes | shadows.get(value, {}) for value, sizes in (shadows | plain).items()}
        self.output_bytes[node.name] = sum(sum(sizes.values()) for sizes in outputs.values())
        # Observers put together the waves of walkers with smaller micro-batches: reference, candidate, shadow.
        if any(max(self.rows[walker.schedule]) < self.wave * self.length for walker in walkers):
            largest = max(max(sizes.values()) for sizes in outputs.values())
            self.scratch[node.name] += 3 * largest * self.wave * self.length

    def _computed(
        self,
        walker: Walker,
        node: Node,
        task: Task,
        inputs: Sequence[_Value | None],
        sizes: dict[str, dict[int, int]],
    ) -> dict[str, _Value]:
        """A walker's values at a node; their bytes per token are put into `sizes`."""
        result: dict[str, _Value] = {}
        on_edges = zip(self.work.edge_values[node.name], task.edges, strict=True)
        calls = [(node.values, task.numerics)]
        calls += [((value,), numerics or task.numerics) for value, numerics in on_edges]
        input_bytes = [INTEGER if value is None else value.size for value in inputs]
        for values, numerics in calls:
            kind = (node.name, numerics.key, walker.schedule, *(value and value.number for value in inputs))
            call = self.call(walker, node, numerics, task.reads, input_bytes)
            waves = -(-self.sequences // self.wave)
            rows = self.rows[walker.schedule] if numerics.sees_rows else {call.tokens: waves}
            self.calls.setdefault(node.name, {})[self._number(kind)] = [
                (call if tokens == call.tokens else replace(call, tokens=tokens), steps)
                for tokens, steps in rows.items()
            ]
            copies = self._assembled(walker, call) if values == node.values else 0
            self.scratch[node.name] = max(self.scratch[node.name], node.op.scratch(call) + copies)
            self.state_bytes[node.name] = self.state_bytes.get(node.name, 0) + self._states(walker, call)
            if node.weights and call.dtype in {"bf16", "fp16"}:
                for tokens, steps in rows.items():
                    calls_of = self.gemms.setdefault((call.dtype, tokens, node.name), {})
                    calls_of[self._number(kind)] = steps
            for port, (value, size) in enumerate(zip(values, node.op.memory.output_bytes(call), strict=False)):
                number = self._number((port, kind))
                sizes.setdefault(value, {})[number] = size * call.outputs[port]
                result[value] = _Value(number, size)
        return result

    def input_bytes(self, walker: Walker, task: Task) -> list[int]:
        """Bytes of one element of each input of a task, as the walker has them whose values it reads."""
        source = walker.inputs_of or walker.name
        return [INTEGER if value is None else self.values[source, value].size for value in task.reads]

    def call(
        self, walker: Walker, node: Node, numerics: Numerics, reads: Sequence[str | None], input_bytes: Sequence[int]
    ) -> Call:
        """The largest call of a walker's kernel at a node."""
        # What a user's function needs is not known: it counts as the last op of its region.
        replaced = walker.plan.region(node.name) is not None
        names = node.inputs if replaced else [read or name for read, name in zip(reads, node.inputs, strict=True)]
        names = [name.partition(EDGE)[0] for name in names]
        return Call(
            weights=weight_shapes(node),
            params=node.params,
            tokens=self._rows_of_a_call(walker, numerics),
            length=self.length,
            active=numerics.active,
            dtype=walker.plan.dtype_of(node.name),
            input_bytes=input_bytes,
            integers=node.op.inputs[0] in node.op.integers,
            inputs=[self.widths[name] * walker.plan.partials[name] for name in names],
            outputs=[self.widths[value] * walker.plan.partials[value] for value in node.values],
            heads=self.heads[names[0]],
            state_numbers=0 if node.op.tokens.state is None else self._state_numbers(node),
        )

    def _state_numbers(self, node: Node) -> int:
        assert node.op.tokens.state is not None, "it was asked of an op that has one"
        return node.op.tokens.state.numbers(
            weight_shapes(node), node.params, [self.widths[value] for value in node.inputs]
        )

    def _states(self, walker: Walker, call: Call) -> int:
        """Bytes of the states of one piece of work, which live as long as a node is looked at: a row at each end where
        the walker or a shadow of it takes a state over, and a copy that is compared.
        """
        if not call.state_numbers:
            return 0
        rows = self.wave + self._ends(frozenset({walker.schedule, *self.taken_by.get(walker.name, ())}))
        return 2 * call.wide * call.state_numbers * rows

    def _ends(self, takers: frozenset[Schedule | MicroBatches]) -> int:
        """The most ends in a wave at which steps of these schedules take states over."""
        if takers not in self.ends:
            ends = set().union(*(self.grid.borders[schedule].continued for schedule in takers))
            of_sequence = Counter(end.sequence for end in ends)
            self.ends[takers] = max(sum(map(of_sequence.__getitem__, range(*wave))) for wave in self.grid.waves)
        return self.ends[takers]

    def _assembled(self, walker: Walker, call: Call) -> int:
        """Bytes of inputs that are put together from several steps, while the steps' own values are still in memory."""
        if max(self.rows[walker.schedule]) >= self.wave * self.length:
            return 0
        return call.tokens * sum(n * size for n, size in zip(call.inputs, call.input_bytes, strict=False))

    def _rows_of_a_call(self, walker: Walker, numerics: Numerics) -> int:
        """The most rows that its kernel is given at once."""
        if not numerics.sees_rows:
            return self.wave * self.length
        return self.joined[walker.schedule] if numerics.joins else max(self.rows[walker.schedule])

    def kernels(self) -> int:
        """About how many shapes of 16-bit GEMMs there are."""
        shapes: set[tuple[object, ...]] = set()
        loads: Counter[tuple[object, ...]] = Counter()
        most: dict[tuple[object, ...], int] = {}
        nodes = {node.name: node for node in self.graph.nodes}
        for (dtype, tokens, name), calls in self.gemms.items():
            node = nodes[name]
            stacks = [ref for ref in node.weights.values() if ref.each]
            if not stacks:
                shapes |= {(dtype, tokens, ref.shape) for ref in node.weights.values() if len(ref.shape) == 2}
                continue
            experts, key = stacks[0].count, (dtype, tokens, *(ref.shape for ref in stacks))
            loads[key] += sum(calls.values()) * experts
            most[key] = min(tokens, int(_LOADS * tokens * self.widths[node.inputs[1]] / experts) + 1)
        return len(shapes) + sum(2 * min(count, most[key]) for key, count in loads.items())

    def saved(self, names: set[str]) -> int:
        """Bytes of these nodes' values, the logits and the routes, counted twice: in parts, and put together."""
        nodes = [n for n in self.graph.nodes if n.name in names or n.op.role.routes or self.graph.output in n.values]
        return (
            2 * sum(self.value_bytes[value] for node in nodes for value in node.values) * self.sequences * self.length
        )

    def peak(self, segment: Segment) -> int:
        """The most bytes of values that exist at once, in any wave of a segment."""
        order = {node.name: i for i, node in enumerate(self.graph.nodes)}
        inside = range(order[segment.nodes[0].name], order[segment.nodes[-1].name] + 1)
        born = {v: order[node.name] for node in self.graph.nodes for v in self._values_of(node)}
        last = {value: order[name] for value, name in self.work.last_use.items()}
        dying = passing = coming = 0
        local = [value for value in born if value in last and born[value] in inside and last[value] in inside]
        for value in born.keys() & last.keys():
            dying += self.value_bytes[value] * (born[value] < inside.start and last[value] in inside)
            passing += self.value_bytes[value] * (born[value] < inside.start and last[value] >= inside.stop)
            coming += self.value_bytes[value] * (born[value] in inside and last[value] >= inside.stop)
        # In the first wave no value that the segment hands on exists yet; in the last wave no value that it was given
        # and nobody reads later exists any more.
        crossing = passing * self.sequences + max(
            dying * self.sequences + coming * self.wave, dying * self.wave + coming * self.sequences
        )
        return crossing * self.length + max(
            (self.output_bytes[node.name] + sum(self.value_bytes[v] for v in local if born[v] < at <= last[v]))
            * self.wave
            * self.length
            + self.scratch[node.name]
            + self.state_bytes.get(node.name, 0)
            for at, node in zip(inside, segment.nodes, strict=True)
        )

    def _values_of(self, node: Node) -> Iterator[str]:
        yield from (value for value in (*node.values, *self.work.edge_values[node.name]) if value in self.value_bytes)
