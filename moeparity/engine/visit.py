"""One node in one wave of a pass. A kernel is called once for all walkers that read the same inputs and choose the
same.

Inputs are read for each step, kernels compute them (with padding rows and masks of packs if needed), and the results
are put together and get identities.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, repeat

import torch

from moeparity.engine.batch import Batch, Rows
from moeparity.engine.carried import Carried, Row
from moeparity.engine.computation import CallInputs, Numerics
from moeparity.engine.grafts import Graft, grafted
from moeparity.engine.grid import Turn
from moeparity.engine.states import Handed, rows_of
from moeparity.engine.task import Task
from moeparity.engine.texts import Texts
from moeparity.engine.values import Block, Identities, assemble, common, reblocked
from moeparity.inputs.weights.loaded import Loaded
from moeparity.numerics.bits import int_view
from moeparity.ops.kernels.pieces import current
from moeparity.ops.placement import APART, HANDS_ON, SUM
from moeparity.plan.graph import Node
from moeparity.progress import telling, through


class Visit:
    """One node in one wave: the identities of the node's values, what was read so far, and what was computed.

    `evaluations` counts kernel calls by node. texts: what says which tokens stand before those of a batch. compares:
    whether equal values are found.
    """

    def __init__(
        self,
        node: Node,
        wave: Rows,
        loaded: Loaded,
        evaluations: Counter[str],
        texts: Texts,
        *,
        compares: bool = True,
    ) -> None:
        self.node, self.wave, self.loaded, self.evaluations = node, wave, loaded, evaluations
        self.texts = texts
        self.identities = [Identities(compares=compares) for _ in node.outputs]
        self._state_identities = Identities(compares=compares)
        # By what was computed: the states after this many of its tokens.
        self._states: dict[tuple[object, ...], dict[int, list[Row]]] = {}
        self._computed: dict[tuple[object, ...], tuple[Block, ...]] = {}
        # Values that were computed span by span and put together, by the ids of the spans' blocks, which `_computed`
        # keeps.
        self._identified: dict[tuple[object, ...], tuple[Block, ...]] = {}
        self.on_part: Callable[[float], None] | None = None
        # By the id of a list of blocks: the list, its blocks by batch, and whether they have several dtypes (choices by
        # phase may cause that). The list is kept, so that no other list gets its id.
        self._blocks_of: dict[int, tuple[list[Block], dict[Batch, Block], bool]] = {}

    def called(
        self, todo: Task, numerics: Numerics, turn: Turn, inputs: Sequence[list[Block] | None]
    ) -> tuple[Block, ...]:
        """The outputs of a kernel for all tokens of a turn, with identities."""
        return self.identified([self.computed(todo, numerics, turn, turn.batch, inputs)], turn.batch)

    def computed(
        self,
        todo: Task,
        numerics: Numerics,
        turn: Turn,
        queries: Batch,
        inputs: Sequence[list[Block] | None],
        handed: Handed | None = None,
        before: Sequence[list[Block] | None] | None = None,
    ) -> tuple[Block, ...]:
        """The outputs of a kernel for some tokens of a turn, without identities. Identities are given to the whole
        turn's values. If the op has a state, it is taken over from what the walker has `handed` on, and handed on
        there. `before` are the same inputs as earlier steps left them; by default the walker's own.
        """
        blocks = self._read_all(todo, numerics, turn, queries, inputs, before or inputs)
        layouts = (None if block is None else (block.ids, block.layout) for block in blocks)
        padding = 0 if any(todo.history) or handed is not None else turn.padding
        carried = None if handed is None else handed.carried(queries, turn.lag, resets=numerics.resets)
        key = (numerics.key, queries, turn.isolated, padding, turn.steps, carried and carried.key, *layouts)
        if key not in self._computed or (carried and not carried.ends.keys() <= self._states[key].keys()):
            self.evaluations[self.node.name] += 1
            call_inputs = CallInputs(
                tensors=_as_taken(todo, turn, queries, blocks, padding),
                loaded=self.loaded,
                size=(queries.size[0], queries.size[1] + padding),
                steps=turn.steps,
                carried=carried,
                text=self.texts.before(queries, padding) if numerics.reads_text else None,
            )
            tensors = self._on_ranks(turn.group, numerics, call_inputs)
            if carried is not None:
                tensors = self._without_states(key, queries, carried, tensors)
            axis = self.node.op.tokens.axis + (numerics.partials > 1)
            blocks_made = (
                Block(_without_padding(tensor, axis, padding), queries, (), numerics.partials, axis)
                for tensor in tensors
            )
            # Kept where only further states were asked for: `_identified` goes by this tuple's id.
            self._computed.setdefault(key, tuple(blocks_made))
        if handed is not None:
            handed.take(row for rows in self._states[key].values() for row in rows)
        return self._computed[key]

    def _read_all(
        self,
        todo: Task,
        numerics: Numerics,
        turn: Turn,
        queries: Batch,
        inputs: Sequence[list[Block] | None],
        before: Sequence[list[Block] | None],
    ) -> list[Block | None]:
        """What a call for some tokens of a turn reads; of earlier tokens as `before` has it."""
        # A replay's routes come after the task's own inputs, and are never read at earlier tokens.
        reads = zip(inputs, before, chain(todo.history, repeat(False)), strict=False)
        return [
            None
            if value is None
            else self._with_earlier(value, earlier or value, turn, queries, view=numerics.copies_history)
            if reads_earlier
            else self.read(value, queries)
            for value, earlier, reads_earlier in reads
        ]

    def _without_states(
        self, key: tuple[object, ...], queries: Batch, carried: Carried, tensors: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        """The outputs of a call; the states that follow them are kept with identities."""
        outputs = len(tensors) - len(carried.ends)
        of_call = self._states.setdefault(key, {})
        for (count, ends), state in zip(carried.ends.items(), tensors[outputs:], strict=True):
            of_call[count] = rows_of(state, ends, queries, self._state_identities)
        return tensors[:outputs]

    def _on_ranks(self, group: tuple[int, int], numerics: Numerics, call_inputs: CallInputs) -> Sequence[torch.Tensor]:
        """The outputs of the ranks that the node lies on: those of its stage of a pipeline, and of a group of these."""
        ranks, whole = current(), numerics.partials == 1
        number, stages = ranks.stage(self.node.name)
        border = numerics.active.get(HANDS_ON) if stages > 1 else None
        if border == APART:
            call_inputs = replace(call_inputs, tensors=ranks.handed_on(number - 1, call_inputs.tensors))
        tensors = ranks.in_groups([(number, stages), group], partial(numerics.compute, call_inputs), whole=whole)
        return tensors if border != SUM else [t for t in ranks.handed_on(number, tensors) if t is not None]

    def identified(self, parts: Sequence[tuple[Block, ...]], batch: Batch) -> tuple[Block, ...]:
        """The outputs for a batch, put together from those of its parts, with identities."""
        key = (batch, *map(id, parts))
        if key not in self._identified:
            self._identified[key] = tuple(
                identities.block(assemble(blocks, batch), batch, blocks[0].axis, blocks[0].partials)
                for identities, blocks in zip(self.identities, zip(*parts, strict=True), strict=True)
            )
        return self._identified[key]

    def walked(self, turns: Sequence[Turn], compute: Callable[[Turn], tuple[Block, ...]]) -> tuple[list[Block], ...]:
        """The blocks of all turns, port by port: computed, or copied from what earlier turns made."""
        ports: tuple[list[Block], ...] = ()
        with telling(self.on_part):
            for turn in through(turns, [1] * len(turns)):
                blocks = compute(turn) if turn.source is None else self._copied(ports, turn.source, turn.batch)
                ports = ports or tuple([] for _ in blocks)
                for port, block in zip(ports, blocks, strict=True):
                    port.append(block)
        return ports

    def grafted(
        self, computed: tuple[list[Block], ...], grafts: Mapping[str, Graft]
    ) -> tuple[tuple[list[Block], ...], ...]:
        """The outputs with recorded values in them: as observers see them, and as they are handed on."""
        if not any(value in grafts for value in self.node.values):
            return computed, computed
        shown, handed_on = list(computed), list(computed)
        for port, value in enumerate(self.node.values):
            if value in grafts:
                blocks = [self._recorded(port, block, grafts[value]) for block in computed[port]]
                shown[port], handed_on[port] = [block for block, _ in blocks], [block for _, block in blocks]
        value_count = len(self.node.values)
        for ports in (shown, handed_on):
            ports[value_count:] = [self._on_edge(blocks, computed[0], ports[0]) for blocks in computed[value_count:]]
        return tuple(shown), tuple(handed_on)

    def recorded(self, port: int, table: torch.Tensor, batch: Batch) -> Block:
        """Rows of a table [B * T, N] on the device of the run, for the tokens of a batch, as an output of the node."""
        rows = table[batch.index.to(table.device)]
        return self.identities[port].block(rows.view(*batch.size, -1), batch)

    def _on_edge(self, edge: Sequence[Block], computed: Sequence[Block], recorded: Sequence[Block]) -> list[Block]:
        """What a single consumer is given beside a recorded value. A trace has what is stored alone. Where that has the
        computed bits, the consumer is given the computed value in its own rounding, else what was recorded.
        """
        # Without this a norm that reads a sum before it is stored would be judged by an input that it never had.
        return [self._beside(*blocks) for blocks in zip(edge, computed, recorded, strict=True)]

    def _beside(self, edge: Block, computed: Block, recorded: Block) -> Block:
        ours, theirs = computed.tensor, recorded.tensor
        if edge is computed or ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            return recorded
        same = int_view(ours) == int_view(theirs)
        if bool(same.all()):
            return edge
        return self.identities[0].block(torch.where(same, edge.tensor, theirs), edge.batch, edge.axis)

    def _recorded(self, port: int, block: Block, graft: Graft) -> tuple[Block, Block]:
        shown, handed_on = grafted(block, graft)
        own_block = self.identities[port].block(handed_on, block.batch, block.axis)
        if shown is handed_on:
            return own_block, own_block
        return self.identities[port].block(shown, block.batch, block.axis), own_block

    def _copied(self, ports: Sequence[Sequence[Block]], source: Batch, batch: Batch) -> tuple[Block, ...]:
        # After a node's own ports come the roundings for single consumers. They are roundings of its first output, so
        # they share that output's identities.
        identities = chain(self.identities, repeat(self.identities[0]))
        return tuple(
            port_identities.block(assemble(port, source), batch, port[0].axis, port[0].partials)
            for port, port_identities in zip(ports, identities, strict=False)
        )

    def _with_earlier(
        self, value: list[Block], earlier: list[Block], turn: Turn, queries: Batch, *, view: bool
    ) -> Block:
        """A value at all keys of a turn: computed tokens have `value`, tokens before them `earlier`.

        The two are the same list unless another walker has computed the earlier tokens anew.
        """
        keys, at = turn.keys(queries), queries.rectangle
        if earlier is value or keys.size[1] == queries.size[1]:
            return self.read(value, keys, view=view)
        assert at is not None, "a call with earlier tokens is of one sequence, or of several alike"
        assert keys.rectangle is not None, "keys of a rectangle are one"
        of_earlier = queries.grid.rectangle(at.first, at.last, keys.rectangle.start, at.start)
        return reblocked([self.read(earlier, of_earlier), self.read(value, queries)], keys)

    def read(self, value: list[Block], batch: Batch, *, view: bool = False) -> Block:
        """A value at the tokens of a batch. With `view`, a view is enough if the tokens lie in a rectangle."""
        if id(value) not in self._blocks_of:
            has_dtypes = len({block.tensor.dtype for block in value}) > 1
            self._blocks_of[id(value)] = value, {block.batch: block for block in value}, has_dtypes
        _, block_of, has_dtypes = self._blocks_of[id(value)]
        if batch in block_of:
            return block_of[batch]
        if has_dtypes:
            # In the dtype of the steps that computed these tokens, whatever dtype other steps left.
            return reblocked([block for block in value if len(common(batch, block.batch)[0])], batch, view=view)
        if len(value) == 1:
            return reblocked(value, batch, view=view)
        whole = batch.grid.whole(self.wave)
        if whole not in block_of:
            # Put together once, for all steps that read values of several steps.
            block_of[whole] = reblocked(value, whole)
        return reblocked([block_of[whole]], batch, view=view)


def _as_taken(
    todo: Task, turn: Turn, queries: Batch, blocks: Sequence[Block | None], padding: int
) -> list[torch.Tensor | None]:
    """The tensors of a call: with padding rows after them; in a pack, the mask says what each token may see."""
    tensors = [None if block is None else block.tensor for block in blocks]
    if any(todo.history):
        if queries.rectangle is not None:
            return tensors
        visible = queries.own_sequence if turn.isolated else torch.ones_like(queries.own_sequence)
        return [
            tensor[:, None, :] & visible.to(tensor.device) if value == "mask" and tensor is not None else tensor
            for value, tensor in zip(todo.reads, tensors, strict=True)
        ]
    if not padding:
        return tensors
    return [None if block is None else _padded(block.tensor, block.axis, padding) for block in blocks]


def _padded(tensor: torch.Tensor, axis: int, rows: int) -> torch.Tensor:
    return torch.cat([tensor, tensor.new_zeros([*tensor.shape[:axis], rows, *tensor.shape[axis + 1 :]])], dim=axis)


def _without_padding(tensor: torch.Tensor, axis: int, rows: int) -> torch.Tensor:
    if not rows:
        return tensor
    # Copied even if it is one row: torch would keep the strides of the padded tensor, and choose a GEMM by them.
    tokens_only = tensor.narrow(axis, 0, tensor.shape[axis] - rows)
    return tokens_only.clone(memory_format=torch.contiguous_format)
