"""All variants walk the graph together: at each node equal inputs under equal numerics are computed once.

The loops, outermost first: segments (weights are read once for all), waves of sequences that are independent of each
other, nodes, walkers. A walker is a variant, or a *shadow*: a variant's numerics on another variant's inputs, which
shows what a node's own numerics do apart from the error carried into it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Protocol

import torch

from moeparity.engine import functions
from moeparity.engine.batches import Rows, cells, inside, micro_batches, waves
from moeparity.engine.values import Block, Identities, assemble
from moeparity.engine.walker import Name, Walker
from moeparity.engine.work import Numerics, Replay, Task, Work
from moeparity.inputs.weights.store import Loaded, WeightStore
from moeparity.plan.graph import SOURCES, Node
from moeparity.plan.region import Region
from moeparity.progress import Callback, Progress

Ids = tuple[int, ...]


@dataclass(slots=True)
class Counts:
    """What a pass cost: kernel calls per node, and bytes read from the checkpoint's files."""

    evaluations: Counter[str] = field(default_factory=Counter)
    bytes_read: int = 0

    def joined(self, further: Counts) -> Counts:
        """The cost of both."""
        return Counts(self.evaluations + further.evaluations, self.bytes_read + further.bytes_read)


class Observer(Protocol):
    """Sees every node's values as they pass, one wave of sequences at a time."""

    def see(self, view: NodeView) -> None:
        """Called once per node and wave; values not copied are gone afterwards."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class NodeView:
    """The values of one node in one wave: outputs and inputs of every walker that ran it, as blocks.

    A walker that runs a user's function in place of several nodes has values at the closing one only. Beyond a node's
    own ports, `outputs` hold what consumers are handed where some walker rounds on an edge. `active` are the choices
    that took effect there. `entered` are the identities of this wave's values that enter a region, by walker and name.
    `again` computes a walker's first micro-batch of this wave anew, on the same input; not where routes are forced.
    `loaded` are the weights of the segment.
    """

    node: Node
    wave: Rows
    cells: tuple[Rows, ...]
    outputs: Mapping[Name, tuple[list[Block], ...]]
    inputs: Mapping[Name, tuple[list[Block] | None, ...]]
    active: Mapping[Name, Mapping[str, object]]
    regions: Mapping[Name, Region]
    entered: Mapping[tuple[Name, str], list[int]]
    again: Callable[[Name], tuple[torch.Tensor, ...]]
    loaded: Loaded = field(default_factory=dict)

    def ran(self, *walkers: Name) -> bool:
        """Whether all of these have values here."""
        return all(walker in self.outputs for walker in walkers)

    def tensor(self, walker: Name, port: int = 0) -> torch.Tensor:
        """A walker's value for the whole wave; of a value in partial sums their sum, exact up to one rounding."""
        blocks = self.outputs[walker][port]
        value = assemble(blocks, self.wave)
        return value if blocks[0].partials == 1 else value.sum(1, dtype=torch.float64).to(value.dtype)

    def by_token(self, walker: Name, port: int = 0) -> torch.Tensor:
        """A walker's value for the whole wave, cut by token: [B, T, values]; partial sums stand side by side."""
        blocks = self.outputs[walker][port]
        axis = self.node.op.token_axis + (blocks[0].partials > 1)
        return assemble(blocks, self.wave).movedim(axis, 1).unsqueeze(-1).flatten(2)

    def output_ids(self, walker: Name) -> list[Ids]:
        """Per cell, the identities of all outputs."""
        return list(zip(*(_ids(blocks) for blocks in self.outputs[walker]), strict=True))

    def inputs_agree(self, a: Name, b: Name) -> list[bool]:
        """Per cell, whether two walkers have equal bits in every input that both of them read."""
        regions = [region for region in (self.regions.get(a), self.regions.get(b)) if region is not None]
        if regions and self.regions.get(a) != self.regions.get(b):
            # What the graph itself is given is the same for all.
            names = dict.fromkeys(n for region in regions for n in region.inputs if n not in SOURCES)
            pairs = [(self.entered[a, name], self.entered[b, name]) for name in names]
        else:
            inputs = zip(self.inputs[a], self.inputs[b], strict=True)
            pairs = [(_ids(x), _ids(y)) for x, y in inputs if x is not None and y is not None]
        return [all(x[i] == y[i] for x, y in pairs) for i in range(len(self.cells))]


def _ids(blocks: Sequence[Block]) -> list[int]:
    return [identity for block in blocks for identity in block.ids]


def run(
    walkers: Sequence[Walker],
    weights: WeightStore,
    tokens: torch.Tensor,
    observers: Sequence[Observer],
    *,
    attention_mask: torch.Tensor | None = None,
    until: str | None = None,
    work: Work | None = None,
    progress: Callback | None = None,
) -> Counts:
    """One pass over the weights with all walkers in lockstep. tokens [B, T] int64 on the weights' device.

    `attention_mask` [B, T] bool is true on real tokens (None: on all). Padded tokens go through every op, as they do
    in transformers; positions count from the first column, padded or not. `until` names the last node to be walked.
    `work` is what a footprint of these walkers on this graph was worked out from (None: it is worked out here).
    `progress` is called after every node of every wave.
    """
    before = weights.bytes_read
    with torch.inference_mode():
        mask = torch.ones_like(tokens, dtype=torch.bool) if attention_mask is None else attention_mask
        work = work or Work.of(walkers, weights.graph)
        lockstep = _Lockstep(walkers, work, tokens, mask.to(tokens.device), observers)
        total, steps = len(weights.graph.nodes) * len(lockstep.waves), 0
        # Users' functions may keep what they are given.
        reuse = not any(walker.functions for walker in walkers)
        for segment, loaded in weights.segments(lockstep.dtypes, reuse=reuse):
            names = [node.name for node in segment.nodes]
            walked = segment.nodes[: names.index(until) + 1] if until in names else segment.nodes
            for wave in lockstep.waves:
                for node in walked:
                    lockstep.step(node, wave, loaded)
                    steps += 1
                    if progress is not None:
                        progress(_progress(segment.name, steps, total, lockstep.counts))
            if until in names:
                break
    lockstep.counts.bytes_read = weights.bytes_read - before
    return lockstep.counts


def _progress(segment: str, steps: int, total: int, counts: Counts) -> Progress:
    work = counts.evaluations.total()
    return Progress(step="pass", at=segment, done=steps, total=total, work=work, unit="op evaluations")


class _Lockstep:
    def __init__(
        self,
        walkers: Sequence[Walker],
        work: Work,
        tokens: torch.Tensor,
        mask: torch.Tensor,
        observers: Sequence[Observer],
    ) -> None:
        self.work, self.observers, self.counts = work, observers, Counts()
        self.dtypes = tuple(dict.fromkeys(dtype for walker in walkers for dtype in walker.plan.dtypes))
        batches = {w.name: micro_batches(len(tokens), w.micro_batch) for w in walkers}
        self.cells = cells(batches.values())
        self.waves = waves(list(batches.values()))
        self.cells_of = {wave: inside(self.cells, wave) for wave in self.waves}
        self.batches = {name: {wave: inside(b, wave) for wave in self.waves} for name, b in batches.items()}
        # Shadows read other walkers' values, so they come after all of them.
        self.walkers = sorted(walkers, key=lambda walker: walker.inputs_of is not None)
        self.values: dict[tuple[Name, str], dict[Rows, Block]] = {}
        self.entered: dict[Rows, dict[tuple[Name, str], list[int]]] = {wave: {} for wave in self.waves}
        self._add_sources(tokens, mask)

    def _add_sources(self, tokens: torch.Tensor, mask: torch.Tensor) -> None:
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand(len(tokens), -1)
        for name, source in (("tokens", tokens), ("positions", positions), ("mask", mask)):
            identities = Identities(self.cells)
            for holder in self.work.holders(name):
                batches = chain.from_iterable(self.batches[holder].values())
                blocks = {rows: identities.block(source[rows[0] : rows[1]], rows) for rows in batches}
                self.values[holder, name] = blocks

    def step(self, node: Node, wave: Rows, loaded: Loaded) -> None:
        """Compute one node of one wave for every walker, show it to the observers, forget what nobody reads again."""
        visit = _Visit(node, wave, self.cells_of[wave], loaded)
        leaders = self.work.leaders[node.name]
        outputs: dict[Name, tuple[list[Block], ...]] = {}
        inputs: dict[Name, tuple[list[Block] | None, ...]] = {}
        active: dict[Name, Mapping[str, object]] = {}
        for walker in self.walkers:
            todo = self.work.at[walker.name, node.name]
            if todo is None or leaders[walker.name] != walker.name:
                continue
            inputs[walker.name] = self._inputs(walker.inputs_of or walker.name, todo.reads, wave)
            results = [self._ports(visit, todo, rows, inputs[walker.name]) for rows in self.batches[walker.name][wave]]
            outputs[walker.name] = tuple(map(list, zip(*results, strict=True)))
            active[walker.name] = todo.numerics.active
            self._keep(walker, node, wave, outputs[walker.name])
        followed = {name: leader for name, leader in leaders.items() if leader in outputs}
        outputs = {name: outputs[leader] for name, leader in followed.items()}
        inputs = {name: inputs[leader] for name, leader in followed.items()}
        active = {name: active[leader] for name, leader in followed.items()}
        regions = self.work.regions[node.name]
        if regions:
            functions.refuse_other_shapes(
                node, regions, {name: [b[0].tensor for b in p] for name, p in outputs.items()}
            )
        again = partial(self._again, visit, inputs)
        view = NodeView(node, wave, visit.cells, outputs, inputs, active, regions, self.entered[wave], again, loaded)
        for observer in self.observers:
            observer.see(view)
        self._forget(node, wave)

    def _ports(self, visit: _Visit, todo: Task, rows: Rows, inputs: Sequence[list[Block] | None]) -> tuple[Block, ...]:
        """A walker's blocks of one micro-batch: the node's own ports, then what each edge of its own is handed."""
        blocks = [None if b is None else _reblocked(b, rows, visit.cells) for b in inputs]
        blocks += () if todo.replay is None else self._replayed(visit, todo.replay, rows)
        ports = self._block(visit, todo.numerics, rows, blocks)
        return ports + tuple(
            ports[0] if numerics is None else self._block(visit, numerics, rows, blocks)[0] for numerics in todo.edges
        )

    def _again(
        self, visit: _Visit, inputs: Mapping[Name, tuple[list[Block] | None, ...]], walker: Name
    ) -> tuple[torch.Tensor, ...]:
        """What the numerics of a walker give of its first micro-batch when they are asked anew."""
        todo, rows = self.work.at[walker, visit.node.name], self.batches[walker][visit.wave][0]
        assert todo is not None, "only what ran is asked"
        blocks = (None if b is None else _reblocked(b, rows, visit.cells) for b in inputs[walker])
        self.counts.evaluations[visit.node.name] += 1
        return todo.numerics.compute([None if b is None else b.tensor for b in blocks], visit.loaded)

    def _replayed(self, visit: _Visit, replay: Replay, rows: Rows) -> list[Block]:
        """The routes that a forced router is given in one of its micro-batches."""
        source = self.work.at[replay.of, visit.node.name]
        assert source is not None, "a hidden router is refused before"
        inputs = self._inputs(replay.of, source.reads, visit.wave)
        results = []
        for batch in self.batches[replay.of][visit.wave]:
            blocks = [None if b is None else _reblocked(b, batch, visit.cells) for b in inputs]
            results.append(self._block(visit, replay.numerics, batch, blocks)[: replay.ports])
        return [_reblocked(port, rows, visit.cells) for port in zip(*results, strict=True)]

    def _block(
        self, visit: _Visit, numerics: Numerics, rows: Rows, blocks: Sequence[Block | None]
    ) -> tuple[Block, ...]:
        key = (numerics.key, rows, *(None if b is None else (b.ids, b.layout) for b in blocks))
        if key not in visit.computed:
            self.counts.evaluations[visit.node.name] += 1
            tensors = numerics.compute([None if block is None else block.tensor for block in blocks], visit.loaded)
            pairs = zip(visit.identities, tensors, strict=True)
            outputs = (i.block(t, rows, numerics.partials) for i, t in pairs)
            visit.computed[key] = tuple(outputs)
        return visit.computed[key]

    def _inputs(self, source: Name, reads: tuple[str | None, ...], wave: Rows) -> tuple[list[Block] | None, ...]:
        """The values of the walker `source` that are read, None where one is not."""
        rows, holder = self.batches[source][wave], self.work.holder
        return tuple(
            None if value is None else [self.values[holder[value][source], value][r] for r in rows] for value in reads
        )

    def _keep(self, walker: Walker, node: Node, wave: Rows, outputs: tuple[list[Block], ...]) -> None:
        if walker.inputs_of is not None:
            return
        for value, blocks in zip((*node.values, *self.work.edge_values[node.name]), outputs, strict=True):
            if value in self.work.last_use:
                self.values.setdefault((walker.name, value), {}).update({b.rows: b for b in blocks})
            if value in self.work.entering:
                leaders = self.work.leaders[node.name]
                self.entered[wave] |= {
                    (w, value): _ids(blocks) for w, leader in leaders.items() if leader == walker.name
                }

    def _forget(self, node: Node, wave: Rows) -> None:
        for value in self.work.dying[node.name]:
            for holder in self.work.holders(value):
                for rows in self.batches[holder][wave]:
                    self.values.get((holder, value), {}).pop(rows, None)


class _Visit:
    """One node in one wave: the identities its values get, and what was computed so far."""

    def __init__(self, node: Node, wave: Rows, cells: tuple[Rows, ...], loaded: Loaded) -> None:
        self.node, self.wave, self.cells, self.loaded = node, wave, cells, loaded
        self.identities = [Identities(cells) for _ in node.outputs]
        self.computed: dict[tuple[object, ...], tuple[Block, ...]] = {}


def _reblocked(blocks: Sequence[Block], rows: Rows, cells: Sequence[Rows]) -> Block:
    """The block of exactly these rows, put together from the source's blocks where it was cut otherwise."""
    for block in blocks:
        if block.rows == rows:
            return block
    identity = dict(zip((c for b in blocks for c in inside(cells, b.rows)), _ids(blocks), strict=True))
    ids = tuple(identity[cell] for cell in inside(cells, rows))
    return Block(assemble(blocks, rows), rows, ids, blocks[0].partials)
