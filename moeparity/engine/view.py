"""What observers see of a pass: the values of one node, of all walkers, in one wave of sequences."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from moeparity.engine.batch import Batch, Rows
from moeparity.engine.grid import Grid, Turn
from moeparity.engine.values import Block, assemble
from moeparity.engine.walker import WalkerName
from moeparity.inputs.weights.loaded import Loaded
from moeparity.plan.graph import SOURCES, Node
from moeparity.plan.region import Region
from moeparity.plan.schedule.cases import Case, case_of

Ids = tuple[int, ...]


class Observer(Protocol):
    """Sees every node's values as they pass, one wave of sequences at a time."""

    def see(self, view: NodeView) -> None:
        """Called once for each node and wave. Values that are not copied are gone afterwards."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class NodeView:
    """The values of one node in one wave: outputs and inputs of every walker that ran it, as blocks.

    A walker that runs a user's function in place of several nodes has values at the last of them only. After a node's
    own ports, `outputs` hold the values that single consumers are given if some walker rounds on an edge. `active` are
    the choices in effect. `entered` are the identities of this wave's values that enter a region, by walker and name.
    `again` computes a walker's first step of this wave once more, on the same input; it is not available for forced
    routes. `loaded` are the weights of the segment. `packs` are the packs whose tokens see other sequences, and `turns`
    the steps of a walker's schedule, both by walker.
    """

    node: Node
    wave: Rows
    grid: Grid
    outputs: Mapping[WalkerName, tuple[list[Block], ...]]
    inputs: Mapping[WalkerName, tuple[list[Block] | None, ...]]
    active: Mapping[WalkerName, Mapping[str, object]]
    regions: Mapping[WalkerName, Region]
    entered: Mapping[tuple[WalkerName, str], Ids]
    again: Callable[[WalkerName], tuple[torch.Tensor, ...]]
    loaded: Loaded = field(default_factory=Loaded)
    packs: Mapping[WalkerName, Sequence[Batch]] = field(default_factory=dict)
    turns: Mapping[WalkerName, Sequence[Turn]] = field(default_factory=dict)

    @property
    def batch(self) -> Batch:
        """All tokens of the wave."""
        return self.grid.whole(self.wave)

    @property
    def cells(self) -> tuple[int, ...]:
        """The cells of the wave."""
        return self.batch.cells

    def tokens_of(self, cells: Collection[int]) -> torch.Tensor:
        """Which tokens of the wave lie in these cells, bool [B, T]."""
        return torch.isin(self.grid.cell_of[slice(*self.wave)], torch.tensor(sorted(cells), dtype=torch.int64))

    def ran(self, *walkers: WalkerName) -> bool:
        """Whether all of these walkers have values here."""
        return all(walker in self.outputs for walker in walkers)

    def tensor(self, walker: WalkerName, port: int = 0) -> torch.Tensor:
        """A walker's value for the whole wave. For partial sums it is their sum, exact up to one rounding."""
        blocks = self.outputs[walker][port]
        value = assemble(blocks, self.batch)
        return value if blocks[0].partials == 1 else value.sum(1, dtype=torch.float64).to(value.dtype)

    def counted(self, walker: WalkerName, port: int = 0) -> torch.Tensor:
        """A walker's value without fillers, which no engine computes: [tokens, ...]; all of it if there are none."""
        value = self.tensor(walker, port)
        if self.grid.fillers.isdisjoint(self.cells):
            return value
        block = self.outputs[walker][port][0]
        axis = block.axis - (block.partials > 1)
        return value.movedim(axis, 1)[~self.tokens_of(self.grid.fillers).to(value.device)]

    def by_token(self, walker: WalkerName, port: int = 0) -> torch.Tensor:
        """The value that a walker has of every token of the wave: [B, T, values]. The partial sums of a token are
        joined along the last axis.
        """
        blocks = self.outputs[walker][port]
        return assemble(blocks, self.batch).movedim(blocks[0].axis, 1).unsqueeze(-1).flatten(2)

    def tokens_by_case(self, walker: WalkerName, cases: Collection[Case]) -> dict[Case, torch.Tensor]:
        """By case of a plan: which tokens of the wave a walker computes in that case at this node, bool [B, T]."""
        first, last = self.wave
        tokens: dict[Case, torch.Tensor] = {}
        for turn in self.turns[walker]:
            sizes, apart = turn.sizes, self.node.op.tokens.by_sequence and turn.batch.shape == "flat"
            for queries in turn.batch.apart if apart else (turn.batch,):
                case = case_of(cases, turn.sizes_of(queries, sizes)) or turn.phase
                of_case = tokens.setdefault(case, torch.zeros(last - first, self.grid.length, dtype=torch.bool))
                of_case.view(-1)[queries.index - first * self.grid.length] = True
        return tokens

    def output_ids(self, walker: WalkerName) -> list[Ids]:
        """For each cell, the identities of all outputs."""
        return list(zip(*(ids_of(blocks, self.batch) for blocks in self.outputs[walker]), strict=True))

    def outputs_agree(self, a: WalkerName, b: WalkerName) -> bool:
        """Whether two walkers have equal bits in every output, in all cells."""
        # If one walker works for the other, there is only one value.
        return self.outputs[a] is self.outputs[b] or self.output_ids(a) == self.output_ids(b)

    def inputs_agree(self, a: WalkerName, b: WalkerName) -> list[bool]:
        """For each cell, whether two walkers have equal bits in every input that both of them read.

        If an op reads earlier tokens, these count as inputs too. What the graph itself is given does not count: tokens
        are the same for all walkers, and if positions are not, the schedule is a difference at the node that reads
        them.
        """
        regions = [region for region in (self.regions.get(a), self.regions.get(b)) if region is not None]
        if regions and self.regions.get(a) != self.regions.get(b):
            names = dict.fromkeys(n for region in regions for n in region.inputs if n not in SOURCES)
            pairs = [(self.entered[a, name], self.entered[b, name], True) for name in names]
        else:
            pairs = [
                (ids_of(x, self.batch), ids_of(y, self.batch), earlier)
                for name, earlier, x, y in zip(*self._read(regions), self.inputs[a], self.inputs[b], strict=False)
                if name not in SOURCES and x and y
            ]
        in_turn, history = ([True for _ in self.cells] for _ in range(2))
        for x, y, earlier in pairs:
            if x != y:
                agree = history if earlier else in_turn
                agree[:] = map(operator.and_, agree, map(operator.eq, x, y))
        return list(map(operator.and_, in_turn, self._with_history(history, a, b)))

    def _read(self, regions: Sequence[Region]) -> tuple[Sequence[str], Sequence[bool]]:
        """The values that are read, and for each whether earlier tokens may be read too; for a user's function that is
        not known.
        """
        if regions:
            return regions[0].inputs, [True for _ in regions[0].inputs]
        return self.node.inputs, [self.node.op.tokens.reads_earlier(port) for port in self.node.ports]

    def _with_history(self, agree: list[bool], *walkers: WalkerName) -> list[bool]:
        """For each cell, whether it and all cells with earlier tokens that these walkers read from it agree."""
        if all(agree) or not any(agree):
            return agree
        numbers = self.grid.cell_of[slice(*self.wave)]
        places = torch.searchsorted(torch.tensor(self.cells), numbers)
        token_agrees = torch.tensor(agree)[places].int()
        so_far = token_agrees.cummin(-1).values.flatten()
        for pack in (pack for walker in walkers for pack in self.packs.get(walker, ())):
            at = pack.index - self.wave[0] * self.grid.length
            so_far[at] = torch.minimum(so_far[at], token_agrees.flatten()[at].cummin(-1).values)
        result = torch.ones(len(agree), dtype=torch.int32)
        return result.scatter_reduce(0, places.flatten(), so_far, "amin").bool().tolist()


def ids_of(blocks: Sequence[Block], batch: Batch) -> Ids:
    """The identities of a value in the cells of a batch, in their order."""
    if len(blocks) == 1 and blocks[0].batch is batch:
        return blocks[0].ids
    identity = {cell: number for block in blocks for cell, number in zip(block.batch.cells, block.ids, strict=True)}
    return tuple([identity[cell] for cell in batch.cells])
