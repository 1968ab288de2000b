"""Observers of a lockstep pass: they reduce values to numbers as the values go by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from typing import Literal

import torch

from moeparity.engine.lockstep import Ids, NodeView
from moeparity.metrics.divergence import Error, compare
from moeparity.metrics.routing import Flips, flips
from moeparity.metrics.tokens import CHUNK, SequenceSums, log_probs, reports, seen_metrics
from moeparity.plan.graph import Node


@dataclass(slots=True)
class NodeRecord:
    """What was seen of one node. Cells are the smallest groups of sequences that some variant computes together;
    `root_sequences` counts the sequences in cells with equal inputs and unequal output.

    `carried` is the error of the candidate's own value, `local` that of the candidate's numerics on the reference's
    inputs; both against the reference's value, None for nodes without floating-point output.
    """

    node: Node
    root_sequences: int = 0
    carried: Error | None = None
    local: Error | None = None


@dataclass(slots=True)
class Divergence:
    """Where the candidate's values leave the reference's, and how far; `shadow` is the local-error walker.

    Padded tokens are in it: they go through every op, and their values can be a root or the largest error.
    """

    reference: str
    candidate: str
    shadow: str
    records: dict[str, NodeRecord] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if not view.ran(self.reference, self.candidate):
            return
        record = self.records.setdefault(view.node.name, NodeRecord(view.node))
        agree = view.inputs_agree(self.reference, self.candidate)
        outputs = zip(view.output_ids(self.reference), view.output_ids(self.candidate), strict=True)
        roots = [same and a != b for same, (a, b) in zip(agree, outputs, strict=True)]
        record.root_sequences += sum(c[1] - c[0] for c, root in zip(view.cells, roots, strict=True) if root)
        record.carried = _add(record.carried, self._error(view, self.candidate))
        record.local = _add(record.local, self._error(view, self.shadow))

    def _error(self, view: NodeView, other: str) -> Error | None:
        if not view.ran(other):
            return None
        if view.node.op.reports:
            return _reported_error(view, self.reference, other)
        total: Error | None = None
        # Beyond the node's own ports come the roundings that single consumers are handed.
        for port in range(len(view.outputs[self.reference])):
            reference = view.tensor(self.reference, port)
            if reference.is_floating_point():
                total = _add(total, compare(reference, view.tensor(other, port)))
        return total


def _reported_error(view: NodeView, reference: str, other: str) -> Error | None:
    """The error of log-probabilities, of logits in their stead those in fp64, kept in fp32; None where both are logits.

    Some rows at a time, since in fp64 all would be large.
    """
    sides = (reference, other)
    kinds = [reports(view, walker) for walker in sides]
    if not any(kinds) and all(view.active[walker]["temperature"] == 1 for walker in sides):
        return None
    total: Error | None = None
    values = [view.tensor(walker).flatten(0, 1) for walker in sides]
    rows = max(1, CHUNK // values[0].shape[-1])
    for pair in zip(*(torch.split(each, rows) for each in values), strict=True):
        ours, theirs = (x if kind else log_probs(x, False).float() for x, kind in zip(pair, kinds, strict=True))
        total = _add(total, compare(ours, theirs))
    return total


def _add(total: Error | None, error: Error | None) -> Error | None:
    return error if total is None else total if error is None else total + error


@dataclass(slots=True)
class Changes:
    """For pairs of walkers: `nodes` at which any bit of an output differs, `roots` where it does on equal inputs.

    Bits of padded tokens count.
    """

    pairs: InitVar[Sequence[tuple[str, str]]]
    nodes: dict[tuple[str, str], set[str]] = field(init=False)
    roots: dict[tuple[str, str], set[str]] = field(init=False)

    def __post_init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Nothing seen of any pair."""
        self.nodes = {pair: set() for pair in pairs}
        self.roots = {pair: set() for pair in pairs}

    def joined(self, further: Changes) -> Changes:
        """Both together; pairs that both have are those of the first."""
        both = Changes([])
        both.nodes, both.roots = further.nodes | self.nodes, further.roots | self.roots
        return both

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        for (a, b), nodes in self.nodes.items():
            if not view.ran(a, b):
                continue
            changed = [x != y for x, y in zip(view.output_ids(a), view.output_ids(b), strict=True)]
            if any(changed):
                nodes.add(view.node.name)
                if any(c and same for c, same in zip(changed, view.inputs_agree(a, b), strict=True)):
                    self.roots[a, b].add(view.node.name)


@dataclass(slots=True)
class Routes:
    """Routing flips of several walkers against the reference: per layer, and tokens that flipped in any layer.

    Only tokens that are real in `attention_mask` [B, T] bool (None: all) are counted.
    """

    reference: str
    others: Sequence[str]
    attention_mask: torch.Tensor | None = None
    layers: dict[tuple[str, int], Flips] = field(default_factory=dict)
    _any_layer: dict[tuple[str, tuple[int, int]], torch.Tensor] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if not view.node.op.routes:
            return
        assert view.node.layer is not None
        real = ... if self.attention_mask is None else self.attention_mask[slice(*view.wave)]
        for other in self.others:
            if not view.ran(self.reference, other):
                continue
            found, mask = flips(view.tensor(self.reference)[real], view.tensor(other)[real])
            key = (other, view.node.layer)
            self.layers[key] = self.layers[key] + found if key in self.layers else found
            seen = self._any_layer.get((other, view.wave))
            self._any_layer[other, view.wave] = mask if seen is None else seen | mask

    def joined(self, further: Routes) -> Routes:
        """Both together; walkers that both have are those of the first."""
        others = tuple(dict.fromkeys((*self.others, *further.others)))
        both = Routes(self.reference, others, self.attention_mask, further.layers | self.layers)
        both._any_layer = further._any_layer | self._any_layer
        return both

    def total(self, other: str) -> Flips | None:
        """All layers of one walker together; None where there is no router."""
        found = [f for (name, _), f in self.layers.items() if name == other]
        return sum(found[1:], found[0]) if found else None

    def tokens_flipped(self, other: str) -> int:
        """Tokens whose expert set differs in at least one layer."""
        return sum(int(mask.sum()) for (name, _), mask in self._any_layer.items() if name == other)


@dataclass(slots=True)
class Logits:
    """Log-probability metrics of several walkers against the reference, summed per sequence as values of `output`, the
    node that log-probabilities are read from, appear.
    """

    output: str
    reference: str
    others: Sequence[str]
    input_ids: torch.Tensor
    loss_mask: torch.Tensor
    sampled_from: Literal["candidate", "reference"]
    parts: dict[str, list[SequenceSums]] = field(init=False)

    def __post_init__(self) -> None:
        """Nothing seen of any walker."""
        self.parts = {other: [] for other in self.others}

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if view.node.name != self.output:
            return
        rows = slice(*view.wave)
        known: dict[tuple[bool, tuple[Ids, ...]], SequenceSums] = {}
        for other in self.others:
            kind = (reports(view, other), tuple(view.output_ids(other)))
            if kind not in known:
                both = self.input_ids[rows], self.loss_mask[rows]
                known[kind] = seen_metrics(view, self.reference, other, *both, self.sampled_from).sums()
            self.parts[other].append(known[kind])

    def joined(self, further: Logits) -> Logits:
        """Both together; walkers that both have are those of the first."""
        others = tuple(dict.fromkeys((*self.others, *further.others)))
        both = Logits(self.output, self.reference, others, self.input_ids, self.loss_mask, self.sampled_from)
        both.parts = further.parts | self.parts
        return both

    def sums(self, other: str) -> SequenceSums:
        """All sequences of one walker."""
        return SequenceSums.concatenate(self.parts[other])
