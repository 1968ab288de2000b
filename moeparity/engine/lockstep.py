"""All variants walk the graph together. At each node, equal inputs under equal numerics are computed once.

The loops, outermost first: segments (weights are read once for all walkers), waves of sequences that are independent of
    each other, nodes, walkers, the steps of a walker's schedule. All tokens are known before the run, so all steps of a
    node come before the next node: when the attention of a step runs, the keys and values of the earlier steps are
    there. A walker runs a variant, or it is a *shadow*: it runs a variant's numerics on another variant's inputs. That
    shows what a node's own numerics change, without the error carried into it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import TypeVar

import torch

from moeparity.engine import functions
from moeparity.engine.batch import Rows
from moeparity.engine.grid import Grid, Turn
from moeparity.engine.inputs import Inputs
from moeparity.engine.joined import Joined
from moeparity.engine.routes import Recorded
from moeparity.engine.states import Givers, Handed, handed_at
from moeparity.engine.task import Replay, Task
from moeparity.engine.texts import Texts
from moeparity.engine.ticks import Ticks
from moeparity.engine.turns import NodeTurns
from moeparity.engine.values import Block, Identities
from moeparity.engine.view import Ids, NodeView, Observer, ids_of
from moeparity.engine.visit import Visit
from moeparity.engine.walker import Walker, WalkerName, WalkersRefusedError, with_lanes
from moeparity.engine.work import Work
from moeparity.inputs.tokens.images import Images
from moeparity.inputs.weights.loaded import Loaded
from moeparity.inputs.weights.store import WeightStore
from moeparity.ops.attribute import RefusedError
from moeparity.plan.graph import SOURCES, Graph, Node
from moeparity.plan.schedule.steps import MicroBatches, Schedule
from moeparity.progress import Callback

Item = TypeVar("Item")


@dataclass(slots=True)
class Counts:
    """What a pass cost: kernel calls by node, and bytes read from the checkpoint's files."""

    evaluations: Counter[str] = field(default_factory=Counter)
    bytes_read: int = 0

    def joined(self, further: Counts) -> Counts:
        """The cost of both."""
        return Counts(self.evaluations + further.evaluations, self.bytes_read + further.bytes_read)


def run(
    walkers: Sequence[Walker],
    weights: WeightStore,
    tokens: torch.Tensor,
    observers: Sequence[Observer],
    *,
    attention_mask: torch.Tensor | None = None,
    images: Images | None = None,
    waves: slice = slice(None),
    work: Work | None = None,
    progress: Callback | None = None,
    compares: bool = True,
) -> Counts:
    """One pass over the weights with all walkers in lockstep.

    tokens [B, T] int64 on the weights' device. `attention_mask` [B, T] bool is true on real tokens (None: on all).
    Padded tokens go through every op, as they do in transformers. `images` are those among the tokens, on the same
    device; a model that takes none does not read them. `waves` says which waves are walked. `work` is what
    the footprint of these walkers on this graph was worked out from (None: it is worked out here). `progress` is called
    after every node of every wave. `compares` says whether values of walkers are compared bit by bit, so that what
    follows from equal ones is computed once; without, walkers share no more than their plans say, and identities tell
    observers nothing, which is quicker where walkers go apart and stay so.
    """
    before = weights.bytes_read
    with torch.inference_mode():
        mask = torch.ones_like(tokens, dtype=torch.bool) if attention_mask is None else attention_mask.to(tokens.device)
        walkers = with_lanes(walkers, *tokens.shape)
        work = work or Work.of(walkers, weights.graph)
        inputs = Inputs(tokens=tokens, mask=mask, images=images)
        lockstep = _Lockstep(walkers, work, weights.graph, inputs, observers, compares=compares)
        walked_waves = lockstep.grid.waves[waves]
        ticks = Ticks(
            heard=progress,
            total=len(weights.graph.nodes) * len(walked_waves),
            evaluations=lockstep.counts.evaluations.total,
        )
        # Users' functions may keep what they are given.
        reuse = not any(walker.functions for walker in walkers)
        for segment, loaded in weights.segments(lockstep.dtypes, reuse=reuse):
            ticks.segment = segment.name
            for wave in walked_waves:
                for node in segment.nodes:
                    lockstep.step(node, wave, loaded, ticks)
                    ticks.node()
    lockstep.counts.bytes_read = weights.bytes_read - before
    return lockstep.counts


class _Lockstep:
    def __init__(
        self,
        walkers: Sequence[Walker],
        work: Work,
        graph: Graph,
        inputs: Inputs,
        observers: Sequence[Observer],
        *,
        compares: bool,
    ) -> None:
        self.work, self.observers, self.counts, self.compares = work, observers, Counts(), compares
        tokens, mask = inputs.tokens, inputs.mask
        self.on_cpu = tokens.device.type == "cpu"
        self.dtypes = tuple(dict.fromkeys(dtype for walker in walkers for dtype in walker.plan.dtypes))
        self.schedules = {walker.name: walker.schedule for walker in walkers}
        self.names_on: dict[Schedule | MicroBatches, list[WalkerName]] = {}
        for walker in walkers:
            self.names_on.setdefault(walker.schedule, []).append(walker.name)
        self.sources = {walker.name: walker.inputs_of or walker.name for walker in walkers}
        self.keys_of = {walker.name: walker.keys_of for walker in walkers}
        self.grafts = {walker.name: walker.grafts for walker in walkers}
        sequences, length = tokens.shape
        self.grid = Grid.of(walkers, sequences, length)
        self.joined = Joined(self.grid)
        self.turns = NodeTurns(self.grid, graph, self.schedules.values())
        # Shadows read other walkers' values, so they come after all of them.
        self.walkers = sorted(walkers, key=lambda walker: walker.inputs_of is not None)
        self.values: dict[tuple[WalkerName, str, Rows], list[Block]] = {}
        self.entered: dict[Rows, dict[tuple[WalkerName, str], Ids]] = {wave: {} for wave in self.grid.waves}
        prompts = next((walker.prompts for walker in walkers if walker.prompts), ())
        requests = next((walker.requests for walker in walkers if walker.requests), ())
        self.texts = Texts(tokens=tokens, mask=mask, prompts=prompts, requests=requests)
        self._add_sources(inputs, {value for node in graph.nodes for value in node.inputs})

    def _add_sources(self, inputs: Inputs, read: Container[str]) -> None:
        for name in (name for name in SOURCES if name in read):
            identities = Identities()
            for holder in self.work.holders(name):
                source = inputs.source(name, self.grid, self.schedules[holder])
                for wave in self.grid.waves:
                    block = identities.block(source[slice(*wave)], self.grid.whole(wave))
                    self.values[holder, name, wave] = [block]

    def step(self, node: Node, wave: Rows, loaded: Loaded, ticks: Ticks) -> None:
        """Compute one node of one wave for every walker, show it to the observers, and drop the values that nobody
        reads later.
        """
        visit = Visit(node, wave, loaded, self.counts.evaluations, self.texts, compares=self.compares)
        leaders = self.work.leaders[node.name]
        outputs: dict[WalkerName, tuple[list[Block], ...]] = {}
        inputs: dict[WalkerName, tuple[list[Block] | None, ...]] = {}
        active: dict[WalkerName, Mapping[str, object]] = {}
        states = {} if node.op.tokens.state is None else self._states(node)
        for place, walker in enumerate(self.walkers):
            todo = self.work.at[walker.name, node.name]
            if todo is None or leaders[walker.name] != walker.name:
                continue
            source = self.sources[walker.name]
            inputs[walker.name] = self._inputs(source, todo.reads_of_all, wave)
            ports = partial(self._ports, visit, todo, source, states.get(walker.name))
            visit.on_part = partial(self._report_part, ticks, place)
            try:
                computed = visit.walked(self._turns(walker.name, visit, todo), ports)
            except RefusedError as error:
                led = [name for name, leader in leaders.items() if leader == walker.name]
                refusal = error if error.node else RefusedError(error.attribute, error.reason, node=node.name)
                raise WalkersRefusedError(led, refusal) from None
            recorded, handed_on = visit.grafted(computed, walker.grafts)
            outputs[walker.name] = recorded if walker.shows == "recorded" else computed
            active[walker.name] = todo.numerics.active
            self._keep(walker, node, wave, handed_on)
        shown = {walker.name for walker in self.walkers if walker.shown_at(node)}
        followed = {name: leader for name, leader in leaders.items() if leader in outputs and name in shown}
        outputs = {name: outputs[leader] for name, leader in followed.items()}
        inputs = {name: inputs[leader] for name, leader in followed.items()}
        active = {name: active[leader] for name, leader in followed.items()}
        regions = self.work.regions[node.name]
        if regions:
            functions.refuse_other_shapes(
                node, regions, {name: [b[0].tensor for b in p] for name, p in outputs.items()}
            )
        again = partial(self._again, visit)
        packs = {name: batches for name, batches in self._of_all(self.grid.open_packs, wave) if name in outputs}
        turns = {name: steps for name, steps in self._of_all(self.turns.steps, node, wave) if name in outputs}
        entered = self.entered[wave]
        view = NodeView(node, wave, self.grid, outputs, inputs, active, regions, entered, again, loaded, packs, turns)
        for observer in self.observers:
            observer.see(view)
        self._forget(node, wave)

    def _of_all(
        self, of_schedule: Callable[..., Sequence[Item]], *place: object
    ) -> Iterator[tuple[WalkerName, Sequence[Item]]]:
        """For each walker what `of_schedule` gives for its schedule; called once for all walkers with the same
        schedule.
        """
        for schedule, names in self.names_on.items():
            yield from zip(names, repeat(of_schedule(schedule, *place)), strict=False)

    def _report_part(self, ticks: Ticks, place: int, part: float) -> None:
        ticks.within((place + part) / len(self.walkers))

    def _turns(self, walker: WalkerName, visit: Visit, todo: Task) -> Sequence[Turn]:
        """The tokens that go through a node together; several small steps at once if the op allows it."""
        turns = self.turns.at(self.schedules[walker], visit.node, todo, visit.wave)
        return self.joined.turns(turns) if len(turns) > 1 and self._joins(walker, visit, todo) else turns

    def _joins(self, walker: WalkerName, visit: Visit, todo: Task) -> bool:
        """Whether one call may compute several steps: they use one kernel, and the inputs lie in memory as each step's
        own would.
        """
        if not self.on_cpu or not todo.numerics.joins or todo.by_phase or todo.replay is not None or any(todo.edges):
            return False
        if self.turns.is_apart(self.schedules[walker], visit.node):
            return False
        inputs = self._inputs(self.sources[walker], todo.reads, visit.wave)
        return all(block.tensor.is_contiguous() for blocks in inputs for block in blocks or ())

    def _states(self, node: Node) -> dict[WalkerName, Handed]:
        """What the steps of each walker hand on at a node with a state; a shadow begins from its source's states, and
        steps on some weights from those of the walker whose keys they take.
        """
        leaders, working = self.work.leaders[node.name], dict[WalkerName, tuple[Givers, Task]]()
        for walker in self.walkers:
            task = self.work.at[walker.name, node.name]
            if task is not None and leaders[walker.name] == walker.name:
                giver = leaders[self.sources[walker.name]]
                by_lag = {lag: leaders[name] for lag, name in self.keys_of[self.sources[walker.name]].items()}
                working[walker.name] = Givers(giver if giver in working else walker.name, by_lag), task
        return handed_at(working, {name: self.grid.borders[self.schedules[name]] for name in working})

    def _ports(
        self, visit: Visit, at: Task, source: WalkerName, handed: Handed | None, turn: Turn
    ) -> tuple[Block, ...]:
        """A walker's blocks for one turn: those of the node's own ports, then one for each consumer that gets a value
        of its own.
        """
        if any(at.history) or handed is not None:
            return self._by_sequence(visit, at, source, handed, turn)
        todo = _task_of(at, turn)
        replay = todo.replay
        if replay is not None and replay.ports == 0:
            inputs = self._inputs(replay.of, todo.reads, visit.wave)
        else:
            inputs = self._inputs(source, todo.reads, visit.wave)
            inputs = inputs if replay is None else (*inputs, *self._replayed(visit, replay))
        ports = visit.called(todo, todo.numerics, turn, inputs)
        return ports + tuple(
            ports[0] if numerics is None else visit.called(todo, numerics, turn, inputs)[0] for numerics in todo.edges
        )

    def _again(self, visit: Visit, walker: WalkerName) -> tuple[torch.Tensor, ...]:
        """A walker's outputs for its first turn, computed again."""
        todo = self.work.at[walker, visit.node.name]
        assert todo is not None, "only what ran is asked"
        turn = self._turns(walker, visit, todo)[0]
        afresh = Visit(visit.node, visit.wave, visit.loaded, self.counts.evaluations, self.texts)
        handed = Handed(self.grid.borders[self.schedules[walker]]) if visit.node.op.tokens.state is not None else None
        blocks = self._ports(afresh, todo, self.sources[walker], handed, turn)
        return tuple(block.tensor for block in blocks[: len(visit.node.outputs)])

    def _replayed(self, visit: Visit, replay: Replay) -> list[list[Block]]:
        """The choices that a forced router or indexer is given, port by port."""
        values = visit.node.values[: replay.ports]
        if isinstance(replay.of, Recorded):
            whole = self.grid.whole(visit.wave)
            return [[visit.recorded(port, replay.of.of[value], whole)] for port, value in enumerate(values)]
        if visit.node.op.role.picks or all(value in self.grafts[replay.of] for value in values):
            holder = self.work.holder
            return [self.values[holder[value][replay.of], value, visit.wave] for value in values]
        source = self.work.at[replay.of, visit.node.name]
        assert source is not None, "a hidden router is refused before"

        def routes(turn: Turn) -> tuple[Block, ...]:
            task = _task_of(source, turn)
            inputs = self._inputs(replay.of, task.reads, visit.wave)
            return visit.called(task, replay.at(turn.sizes), turn, inputs)

        return list(visit.walked(self._turns(replay.of, visit, source), routes)[: replay.ports])

    def _by_sequence(
        self, visit: Visit, at: Task, source: WalkerName, handed: Handed | None, turn: Turn
    ) -> tuple[Block, ...]:
        """The values of a turn at an op that reads earlier tokens, or a state. If the op computes each span by itself,
        they are put together from the spans' values; the spans may belong to different cases.
        """
        parts = []
        sizes = turn.sizes if at.by_phase else None
        whole = at if sizes is None else at.at(sizes)
        for queries in turn.queries(varlen=whole.numerics.varlen or handed is not None):
            todo = at if sizes is None else at.at(turn.sizes_of(queries, sizes))
            inputs = self._inputs(source, todo.reads, visit.wave)
            keys_of = self.keys_of[source].get(turn.lag)
            before = inputs if keys_of is None else self._inputs(keys_of, todo.reads, visit.wave)
            parts.append(visit.computed(todo, todo.numerics, turn, queries, inputs, handed, before))
        return visit.identified(parts, turn.batch)

    def _inputs(self, source: WalkerName, reads: tuple[str | None, ...], wave: Rows) -> tuple[list[Block] | None, ...]:
        """The values of the walker `source` that are read; None for an input that is not read."""
        holder = self.work.holder
        return tuple(None if value is None else self.values[holder[value][source], value, wave] for value in reads)

    def _keep(self, walker: Walker, node: Node, wave: Rows, outputs: tuple[list[Block], ...]) -> None:
        if walker.inputs_of is not None:
            return
        whole = self.grid.whole(wave)
        for value, blocks in zip((*node.values, *self.work.edge_values[node.name]), outputs, strict=True):
            if value in self.work.last_use:
                self.values[walker.name, value, wave] = blocks
            if value in self.work.entering:
                leaders = self.work.leaders[node.name]
                self.entered[wave] |= {
                    (w, value): ids_of(blocks, whole) for w, leader in leaders.items() if leader == walker.name
                }

    def _forget(self, node: Node, wave: Rows) -> None:
        for value in self.work.dying[node.name]:
            for holder in self.work.holders(value):
                self.values.pop((holder, value, wave), None)


def _task_of(at: Task, turn: Turn) -> Task:
    """The task for a turn. The turn's sizes are only worked out if the task depends on them."""
    return at.at(turn.sizes) if at.by_phase else at
