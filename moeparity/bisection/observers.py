"""What is seen of every trial of a pass: changed nodes, flipped routes, log-probability metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from typing import Literal

import torch

from moeparity.bisection.reported import reports, seen_metrics
from moeparity.engine.lockstep import Ids, NodeView
from moeparity.engine.walker import Name
from moeparity.metrics.routing import Flips, flips
from moeparity.metrics.tokens import SequenceSums


@dataclass(slots=True)
class Changes:
    """For pairs of walkers: `nodes` at which any bit of an output differs, `roots` where it does on equal inputs.

    Bits of padded tokens count.
    """

    pairs: InitVar[Sequence[tuple[Name, Name]]]
    nodes: dict[tuple[Name, Name], set[str]] = field(init=False)
    roots: dict[tuple[Name, Name], set[str]] = field(init=False)

    def __post_init__(self, pairs: Sequence[tuple[Name, Name]]) -> None:
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

    reference: Name
    others: Sequence[Name]
    attention_mask: torch.Tensor | None = None
    layers: dict[tuple[Name, int], Flips] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if not view.node.op.routes:
            return
        assert view.node.layer is not None
        real = ... if self.attention_mask is None else self.attention_mask[slice(*view.wave)]
        for other in self.others:
            if not view.ran(self.reference, other):
                continue
            counts, _ = flips(view.tensor(self.reference)[real], view.tensor(other)[real])
            key = (other, view.node.layer)
            self.layers[key] = self.layers[key] + counts if key in self.layers else counts

    def joined(self, further: Routes) -> Routes:
        """Both together; walkers that both have are those of the first."""
        others = tuple(dict.fromkeys((*self.others, *further.others)))
        return Routes(self.reference, others, self.attention_mask, further.layers | self.layers)

    def total(self, other: Name) -> Flips | None:
        """All layers of one walker together; None where there is no router."""
        counts = [flips for (name, _), flips in self.layers.items() if name == other]
        return sum(counts[1:], counts[0]) if counts else None


@dataclass(slots=True)
class Logits:
    """Log-probability metrics of several walkers against the reference, summed per sequence as values of `output`, the
    node that log-probabilities are read from, appear.
    """

    output: str
    reference: Name
    others: Sequence[Name]
    input_ids: torch.Tensor
    loss_mask: torch.Tensor
    sampled_from: Literal["candidate", "reference"]
    parts: dict[Name, list[SequenceSums]] = field(init=False)

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

    def sums(self, other: Name) -> SequenceSums:
        """All sequences of one walker."""
        return SequenceSums.concatenate(self.parts[other])
