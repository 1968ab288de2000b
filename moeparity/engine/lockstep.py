"""All variants walk the graph together: at each node equal inputs under equal numerics are computed once.

The loops, outermost first: segments (weights are read once for all), waves of sequences that are independent of each
other, nodes, walkers. A walker is a variant, or a *shadow*: a variant's numerics on another variant's inputs, which
shows what a node's own numerics do apart from the error carried into it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

import torch

from moeparity.engine import schedule
from moeparity.engine.schedule import Rows
from moeparity.engine.values import Block, Identities, assemble
from moeparity.graph.bind import BoundGraph
from moeparity.graph.graph import Graph, Node
from moeparity.numerics.dtypes import torch_dtype
from moeparity.weights.store import Loaded, WeightStore

Ids = tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Walker:
    """One plan on one schedule; `inputs_of` names the variant whose values a shadow reads (None: its own)."""

    name: str
    plan: BoundGraph
    micro_batch: int
    inputs_of: str | None = None


@dataclass(slots=True)
class Counts:
    """What a pass cost: kernel calls per node, and bytes read from the checkpoint's files."""

    evaluations: Counter[str] = field(default_factory=Counter)
    bytes_read: int = 0


class Observer(Protocol):
    """Sees every node's values as they pass, one wave of sequences at a time."""

    def see(self, view: NodeView) -> None:
        """Called once per node and wave; values not copied are gone afterwards."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class NodeView:
    """The values of one node in one wave: outputs and inputs of every walker, as blocks."""

    node: Node
    wave: Rows
    cells: tuple[Rows, ...]
    outputs: Mapping[str, tuple[list[Block], ...]]
    inputs: Mapping[str, tuple[list[Block] | None, ...]]

    def tensor(self, walker: str, port: int = 0) -> torch.Tensor:
        """A walker's value for the whole wave."""
        return assemble(self.outputs[walker][port], self.wave)

    def output_ids(self, walker: str) -> list[Ids]:
        """Per cell, the identities of all output ports."""
        return list(zip(*(_ids(blocks) for blocks in self.outputs[walker]), strict=True))

    def input_ids(self, walker: str) -> list[Ids]:
        """Per cell, the identities of all inputs; None in place of an input the walker does not read."""
        per_input = [[None] * len(self.cells) if b is None else _ids(b) for b in self.inputs[walker]]
        return list(zip(*per_input, strict=True))


def _ids(blocks: Sequence[Block]) -> list[int]:
    return [identity for block in blocks for identity in block.ids]


def run(walkers: Sequence[Walker], weights: WeightStore, tokens: torch.Tensor, observers: Sequence[Observer]) -> Counts:
    """One pass over the weights with all walkers in lockstep. tokens [B, T] int64 on the weights' device."""
    before = weights.bytes_read
    with torch.inference_mode():
        lockstep = _Lockstep(walkers, weights.graph, tokens, observers)
        for segment, loaded in weights.segments(lockstep.dtypes):
            for wave in lockstep.waves:
                for node in segment.nodes:
                    lockstep.step(node, wave, loaded)
    lockstep.counts.bytes_read = weights.bytes_read - before
    return lockstep.counts


class _Lockstep:
    def __init__(
        self, walkers: Sequence[Walker], graph: Graph, tokens: torch.Tensor, observers: Sequence[Observer]
    ) -> None:
        self.observers, self.counts = observers, Counts()
        self.dtypes = tuple(dict.fromkeys(walker.plan.dtype for walker in walkers))
        batches = {w.name: schedule.micro_batches(len(tokens), w.micro_batch) for w in walkers}
        self.cells = schedule.cells(batches.values())
        self.waves = schedule.waves(list(batches.values()))
        self.cells_of = {wave: schedule.inside(self.cells, wave) for wave in self.waves}
        self.batches = {name: {wave: schedule.inside(b, wave) for wave in self.waves} for name, b in batches.items()}
        # Shadows read other walkers' values, so they come after all of them.
        self.walkers = sorted(walkers, key=lambda walker: walker.inputs_of is not None)
        self.last_use = {value: node.name for node in graph.nodes for value in node.inputs}
        self.kernels = {node.op.name: node.op.load() for node in graph.nodes}
        self.numerics = {(w.name, n.name): _Numerics.of(w.plan, n) for w in self.walkers for n in graph.nodes}
        self.values: dict[tuple[str, str], dict[Rows, Block]] = {}
        self._add_sources(tokens)

    def _add_sources(self, tokens: torch.Tensor) -> None:
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand(len(tokens), -1)
        for name, source in (("tokens", tokens), ("positions", positions)):
            identities = Identities(self.cells)
            for walker in self.walkers:
                batches = chain.from_iterable(self.batches[walker.name].values())
                blocks = {rows: identities.block(source[rows[0] : rows[1]], rows) for rows in batches}
                self.values[walker.name, name] = blocks

    def step(self, node: Node, wave: Rows, loaded: Loaded) -> None:
        """Compute one node of one wave for every walker, show it to the observers, forget what nobody reads again."""
        cells = self.cells_of[wave]
        identities = [Identities(cells) for _ in node.outputs]
        computed: dict[tuple[object, ...], tuple[Block, ...]] = {}
        outputs: dict[str, tuple[list[Block], ...]] = {}
        inputs: dict[str, tuple[list[Block] | None, ...]] = {}
        for walker in self.walkers:
            numerics = self.numerics[walker.name, node.name]
            inputs[walker.name] = self._inputs(walker, numerics.reads, wave)
            results: list[tuple[Block, ...]] = []
            for rows in self.batches[walker.name][wave]:
                given = [None if b is None else _reblocked(b, rows, cells) for b in inputs[walker.name]]
                key = (numerics.key, rows, *(None if b is None else (b.ids, b.layout) for b in given))
                if key not in computed:
                    tensors = self._compute(node, numerics, given, loaded)
                    computed[key] = tuple(i.block(t, rows) for i, t in zip(identities, tensors, strict=True))
                results.append(computed[key])
            outputs[walker.name] = tuple(map(list, zip(*results, strict=True)))
            self._keep(walker, node, outputs[walker.name])
        for observer in self.observers:
            observer.see(NodeView(node, wave, cells, outputs, inputs))
        self._forget(node, wave)

    def _inputs(self, walker: Walker, reads: tuple[str | None, ...], wave: Rows) -> tuple[list[Block] | None, ...]:
        source = walker.inputs_of or walker.name
        rows = self.batches[source][wave]
        return tuple(None if value is None else [self.values[source, value][r] for r in rows] for value in reads)

    def _compute(
        self, node: Node, numerics: _Numerics, given: Sequence[Block | None], loaded: Loaded
    ) -> tuple[torch.Tensor, ...]:
        self.counts.evaluations[node.name] += 1
        tensors = [None if block is None else block.tensor for block in given]
        out = self.kernels[node.op.name](*tensors, w=loaded[node.name, numerics.dtype], p=node.params, at=numerics.at)
        return out if isinstance(out, tuple) else (out,)

    def _keep(self, walker: Walker, node: Node, outputs: tuple[list[Block], ...]) -> None:
        if walker.inputs_of is None:
            for value, blocks in zip(node.values, outputs, strict=True):
                if value in self.last_use:
                    self.values.setdefault((walker.name, value), {}).update({b.rows: b for b in blocks})

    def _forget(self, node: Node, wave: Rows) -> None:
        for value in node.inputs:
            if self.last_use[value] == node.name:
                for walker in self.walkers:
                    for rows in self.batches[walker.name][wave]:
                        self.values.get((walker.name, value), {}).pop(rows, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Numerics:
    """What a plan says of one node, made ready: a key to compare, the values a kernel takes, the inputs it reads."""

    key: tuple[object, ...]
    dtype: str
    at: Mapping[str, Any]
    reads: tuple[str | None, ...]

    @classmethod
    def of(cls, plan: BoundGraph, node: Node) -> _Numerics:
        active = plan.active(node)
        kinds = {attribute.name: attribute.kind for attribute in node.op.attributes}
        at = {name: torch_dtype(str(v)) if kinds[name] == "rounding" else v for name, v in active.items()}
        return cls(key=(plan.dtype, *active.items()), dtype=plan.dtype, at=at, reads=plan.read_inputs(node))


def _reblocked(blocks: Sequence[Block], rows: Rows, cells: Sequence[Rows]) -> Block:
    """The block of exactly these rows, put together from the source's blocks where it was cut otherwise."""
    for block in blocks:
        if block.rows == rows:
            return block
    identity = dict(zip((c for b in blocks for c in schedule.inside(cells, b.rows)), _ids(blocks), strict=True))
    return Block(assemble(blocks, rows), rows, tuple(identity[cell] for cell in schedule.inside(cells, rows)))
