"""Where the candidate's values leave the reference's, and how far they lie apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from moeparity.bisection.divergence.extent import Extent, other_values
from moeparity.bisection.observers import reports
from moeparity.bisection.plan import Plan
from moeparity.bisection.trials import SHADOW, Trials
from moeparity.engine.view import NodeView
from moeparity.engine.walker import Name
from moeparity.metrics.divergence import Error, compare
from moeparity.metrics.tokens import CHUNK, log_probs
from moeparity.plan.graph import Node
from moeparity.plan.sides import CANDIDATE, REFERENCE


@dataclass(slots=True)
class NodeRecord:
    """What was seen of one node. Cells are the smallest groups of tokens that some variant computes together.

    `root_cells` is all that lies in cells with equal inputs and unequal output, `root_values` what of it has other
    values; nothing has where outputs differ in dtype only.

    `carried` is the error of the candidate's own value, `local` that of one side's numerics on the other's inputs; None
    for nodes without floating-point output, and where values of both have other shapes.
    """

    node: Node
    root_cells: Extent = field(default_factory=Extent)
    root_values: Extent = field(default_factory=Extent)
    carried: Error | None = None
    local: Error | None = None

    @property
    def is_root(self) -> bool:
        """Whether some cell has equal inputs and unequal output."""
        return self.root_cells.sequences > 0


@dataclass(slots=True)
class Divergence:
    """Where the candidate's values leave the reference's, and how far.

    `roots_of` are the walkers whose equal inputs and unequal output make a root; `local_of` those that differ by what a
    node makes of equal inputs, its local error, the one that is held to first.

    Padded tokens, those that are not real in `attention_mask` [B, T] bool (None: all are), are in it: they go through
    every op, and their values can be a root or the largest error. What only fills the grid, since an engine of that
    schedule would not compute it, is left out.
    """

    reference: Name
    candidate: Name
    roots_of: tuple[Name, Name]
    local_of: tuple[Name, Name]
    attention_mask: torch.Tensor | None = None
    records: dict[str, NodeRecord] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if not view.ran(self.reference, self.candidate):
            return
        record = self.records.setdefault(view.node.name, NodeRecord(view.node))
        roots = [] if view.outputs_agree(*self.roots_of) else self._root_cells(view)
        if roots:
            self._add_root(record, view, roots)
        error = _error(view, self.reference, self.candidate)
        record.carried = _add(record.carried, error)
        # Where no error is carried in, nearly everywhere before the first root, both are one.
        local = error if self._is_carried_as_local(view) else _error(view, *self.local_of)
        record.local = _add(record.local, local)

    def _is_carried_as_local(self, view: NodeView) -> bool:
        """Whether the walkers of the local error have the very values of the reference and the candidate."""
        # What is reported of the same logits may be two, by each side's temperature.
        if view.node.op.reports or not view.ran(*self.local_of):
            return False
        pairs = zip(self.local_of, (self.reference, self.candidate), strict=True)
        return all(a == b or view.outputs_agree(a, b) for a, b in pairs)

    @property
    def result(self) -> dict[str, NodeRecord]:
        """By node, what was seen of it."""
        return self.records

    def part(self, rows: slice) -> dict[str, NodeRecord]:
        """What was seen, of the sequences `rows`, for another to join."""
        return self.records

    def join(self, part: dict[str, NodeRecord], rows: slice) -> None:
        """Take over what another saw of later waves, the sequences `rows`."""
        for name, further in part.items():
            record = self.records.setdefault(name, NodeRecord(further.node))
            record.root_cells += further.root_cells
            record.root_values += further.root_values
            record.carried = _add(record.carried, further.carried)
            record.local = _add(record.local, further.local)

    def _root_cells(self, view: NodeView) -> list[int]:
        """The cells with equal inputs and unequal output."""
        agree = view.inputs_agree(*self.roots_of)
        outputs = zip(*map(view.output_ids, self.roots_of), strict=True)
        return [
            cell
            for cell, equal_inputs, (a, b) in zip(view.cells, agree, outputs, strict=True)
            if equal_inputs and a != b and cell not in view.grid.fillers
        ]

    def _add_root(self, record: NodeRecord, view: NodeView, cells: Sequence[int]) -> None:
        whole = view.tokens_of(cells)
        values = other_values(view, *self.roots_of, whole)
        mask = self.attention_mask
        real = torch.ones_like(whole) if mask is None else mask[slice(*view.wave)].cpu()
        record.root_cells += Extent.of(whole, real)
        record.root_values += Extent.of(values, real)


def _error(view: NodeView, reference: Name, walker: Name) -> Error | None:
    if not view.ran(reference, walker):
        return None
    if view.node.op.reports:
        return _reported_error(view, reference, walker)
    total: Error | None = None
    # Beyond the node's own ports come the roundings that single consumers are handed.
    for port in range(len(view.outputs[reference])):
        ours, theirs = (view.counted(name, port) for name in (reference, walker))
        # A fault can give a value another size, and then no element stands against another.
        if ours.is_floating_point() and ours.shape == theirs.shape:
            total = _add(total, compare(ours, theirs))
    return total


def _reported_error(view: NodeView, reference: Name, candidate: Name) -> Error | None:
    """The error of log-probabilities, of logits in their stead those in fp64, kept in fp32; None where both are logits.

    Some rows at a time, since in fp64 all would be large.
    """
    sides = (reference, candidate)
    kinds = [reports(view, walker) for walker in sides]
    if not any(kinds) and all(view.active[walker]["temperature"] == 1 for walker in sides):
        return None
    total: Error | None = None
    values = [view.counted(walker).flatten(0, -2) for walker in sides]
    rows = max(1, CHUNK // values[0].shape[-1])
    for pair in zip(*(torch.split(value, rows) for value in values), strict=True):
        ours, theirs = (x if kind else log_probs(x, False).float() for x, kind in zip(pair, kinds, strict=True))
        total = _add(total, compare(ours, theirs))
    return total


def _add(total: Error | None, error: Error | None) -> Error | None:
    return error if total is None else total if error is None else total + error


STATE = (NodeRecord, Extent, Error)


def observer(plan: Plan, trials: Trials) -> Divergence:
    """Looks at both sides and the shadow."""
    _, mask, _ = plan.tokens_on_device
    if plan.recorded is not None:
        # Both read what was recorded, so that every node is looked at by itself.
        return Divergence(REFERENCE, CANDIDATE, (SHADOW, CANDIDATE), (SHADOW, CANDIDATE), mask)
    return Divergence(REFERENCE, CANDIDATE, (REFERENCE, CANDIDATE), (REFERENCE, SHADOW), mask)
