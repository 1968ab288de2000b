"""An observer that finds where the candidate's values leave the reference's, and how far apart they lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch

from moeparity.bisection.divergence.extent import Extent, other_values
from moeparity.bisection.observers import reports, truncates
from moeparity.bisection.study import Study
from moeparity.bisection.trials import SHADOW, Trials
from moeparity.bisection.watch import SectionObserver, Watch
from moeparity.engine.view import NodeView
from moeparity.engine.walker import WalkerName
from moeparity.metrics.divergence import Error, compare
from moeparity.metrics.tokens import CHUNK, log_probs
from moeparity.plan.graph import Node
from moeparity.plan.sides import CANDIDATE, REFERENCE

PLACES: Final = 4
"""The places of at most this many tokens of a root are kept."""


@dataclass(slots=True)
class NodeRecord:
    """What was seen of one node.

    root_cells: the extent of all cells with equal inputs and unequal output. A cell is the smallest group of tokens
        that some variant computes together. root_values: the part of it whose values differ; empty if only dtypes do.
    places: sequence and position of the first real tokens with values that differ.
    carried: the error of the candidate's value. local: that of one side's numerics on the other side's inputs. Both are
        None for nodes without floating-point output, and if the sides' values have different shapes or hold other
        things; `local` alone is None where one side's numerics can't read the other side's values.
    measured: whether the node's values can be held against each other.
    """

    node: Node
    root_cells: Extent = field(default_factory=Extent)
    root_values: Extent = field(default_factory=Extent)
    places: tuple[tuple[int, int], ...] = ()
    carried: Error | None = None
    local: Error | None = None
    measured: bool = True

    @property
    def is_root(self) -> bool:
        """Whether some cell has equal inputs and unequal output."""
        return self.root_cells.sequences > 0


@dataclass(slots=True)
class DivergenceObserver(SectionObserver):
    """Finds where the candidate's values leave the reference's, and how far apart they lie.

    roots_of: two walkers; a node at which their inputs are equal and their outputs are not is a root. local_of: two
    walkers with equal inputs at every node; the difference of their outputs is the local error, relative to the first.

    otherwise: the nodes whose values hold other things on the two sides; no error is measured there.

    Padding (tokens that are False in `attention_mask`, bool [B, T]; None: no padding) counts: it goes through every op,
    and its values can be a root or the largest error. Filler, which an engine of that schedule would not compute, does
    not.
    """

    roots_of: tuple[WalkerName, WalkerName]
    local_of: tuple[WalkerName, WalkerName]
    attention_mask: torch.Tensor | None = None
    otherwise: frozenset[str] = frozenset()
    records: dict[str, NodeRecord] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if not view.ran(REFERENCE, CANDIDATE):
            return
        measured = view.node.name not in self.otherwise and view.ran(*self.local_of)
        record = self.records.setdefault(view.node.name, NodeRecord(view.node, measured=measured))
        roots = [] if view.outputs_agree(*self.roots_of) else self._root_cells(view)
        if roots:
            self._add_root(record, view, roots)
        if view.node.name in self.otherwise:
            return
        error = _error(view, REFERENCE, CANDIDATE)
        record.carried = _add(record.carried, error)
        # Before the first root no error is carried in, so nearly everywhere there carried and local are the same
        # values.
        local = error if self._is_carried_as_local(view) else _error(view, *self.local_of)
        record.local = _add(record.local, local)

    def _is_carried_as_local(self, view: NodeView) -> bool:
        """Whether the two walkers of the local error have the same bits as the reference and the candidate here."""
        # Logits with equal bits can give two different reports, since each side has its own temperature.
        if view.node.op.role.reports or not view.ran(*self.local_of):
            return False
        pairs = zip(self.local_of, (REFERENCE, CANDIDATE), strict=True)
        return all(a == b or view.outputs_agree(a, b) for a, b in pairs)

    @property
    def result(self) -> dict[str, NodeRecord]:
        """What was seen, by node."""
        return self.records

    def join(self, part: dict[str, NodeRecord], rows: slice) -> None:
        """Add what another observer saw of later waves, the sequences `rows`."""
        for name, further in part.items():
            record = self.records.setdefault(name, NodeRecord(further.node, measured=further.measured))
            record.root_cells += further.root_cells
            record.root_values += further.root_values
            record.places = (*record.places, *further.places)[:PLACES]
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
        positions = real.cumsum(-1) - 1
        cells = (values & real).nonzero()[: PLACES - len(record.places)].tolist()
        record.places += tuple((view.wave[0] + row, int(positions[row, column])) for row, column in cells)


def _error(view: NodeView, reference: WalkerName, walker: WalkerName) -> Error | None:
    if not view.ran(reference, walker):
        return None
    if view.node.op.role.reports:
        return _reported_error(view, reference, walker)
    total: Error | None = None
    # Ports beyond the node's own outputs are the roundings that single consumers read.
    for port in range(len(view.outputs[reference])):
        ours, theirs = (view.counted(name, port) for name in (reference, walker))
        # A fault can change a value's shape; then elements have no counterparts.
        if ours.is_floating_point() and ours.shape == theirs.shape:
            total = _add(total, compare(ours, theirs))
    return total


def _reported_error(view: NodeView, reference: WalkerName, candidate: WalkerName) -> Error | None:
    """How far the candidate's log-probabilities lie from the reference's, at tokens that both sides keep; None if both
    hand on plain logits at temperature 1, whose error is told already.

    Logits of one side are turned into log-probabilities first (log-softmax in fp64, kept as fp32), some rows at a time,
    since the whole would be large in fp64.
    """
    sides = (reference, candidate)
    kinds = [reports(view, walker) for walker in sides]
    truncated = [truncates(view, walker) for walker in sides]
    plain = all(view.active[walker]["temperature"] == 1 for walker in sides if walker not in view.regions)
    if not any(kinds) and not any(truncated) and plain:
        return None
    total: Error | None = None
    values = [view.counted(walker).flatten(0, -2) for walker in sides]
    rows = max(1, CHUNK // values[0].shape[-1])
    for pair in zip(*(torch.split(value, rows) for value in values), strict=True):
        ours, theirs = (x if kind else log_probs(x, False).float() for x, kind in zip(pair, kinds, strict=True))
        if any(truncated):
            absent = [(x == -torch.inf) & cut for x, cut in zip((ours, theirs), truncated, strict=True)]
            absent_somewhere = absent[0] | absent[1]
            ours, theirs = ours[~absent_somewhere], theirs[~absent_somewhere]
        total = _add(total, compare(ours, theirs))
    return total


def _add(total: Error | None, error: Error | None) -> Error | None:
    return error if total is None else total if error is None else total + error


def observer(study: Study, trials: Trials) -> DivergenceObserver:
    """The observer of both sides and of the shadow."""
    _, mask, _ = study.tokens_on_device
    if study.recorded is not None:
        # Shadow and candidate both read recorded values, so every node is compared by itself.
        return DivergenceObserver((SHADOW, CANDIDATE), (SHADOW, CANDIDATE), mask)
    otherwise = study.reference.plan.held_otherwise(study.candidate.plan)
    return DivergenceObserver((REFERENCE, CANDIDATE), (REFERENCE, SHADOW), mask, otherwise)


RECORDS: Final[Watch[Mapping[str, NodeRecord]]] = Watch("divergence", observer, (NodeRecord, Extent, Error))
