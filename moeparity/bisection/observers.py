"""Observers of every trial of a pass: nodes that changed, routes that flipped, log-probability metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Literal, cast

import torch

from moeparity.bisection.study import Study
from moeparity.engine.view import Ids, NodeView
from moeparity.engine.walker import WalkerName
from moeparity.metrics.routing import Flips, flips
from moeparity.metrics.tokens import SequenceSums, TokenMetrics, token_metrics
from moeparity.ops.attribute import Value
from moeparity.ops.log_probs import UNROUNDED
from moeparity.plan.sides import REFERENCE


@dataclass(slots=True)
class Changes:
    """For pairs of walkers: the `nodes` at which an output differs in any bit, and the `roots`, where inputs are equal
    too.

    Padding counts. Filler does not, since an engine of that schedule would not compute it.
    """

    pairs: InitVar[Sequence[tuple[WalkerName, WalkerName]]]
    nodes: dict[tuple[WalkerName, WalkerName], set[str]] = field(init=False)
    roots: dict[tuple[WalkerName, WalkerName], set[str]] = field(init=False)

    def __post_init__(self, pairs: Sequence[tuple[WalkerName, WalkerName]]) -> None:
        """Start with nothing seen of any pair."""
        self.nodes = {pair: set() for pair in pairs}
        self.roots = {pair: set() for pair in pairs}

    def join(self, part: Changes, rows: slice) -> None:
        """Add what another observer saw of later waves, the sequences `rows`."""
        for pair, nodes in part.nodes.items():
            self.nodes[pair] |= nodes
            self.roots[pair] |= part.roots[pair]

    def joined(self, further: Changes) -> Changes:
        """Both together; for pairs that both have, this one's entry stays."""
        union = Changes([])
        union.nodes, union.roots = further.nodes | self.nodes, further.roots | self.roots
        return union

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        counted = [cell not in view.grid.fillers for cell in view.cells]
        for (a, b), nodes in self.nodes.items():
            # A walker that follows another has the same value. A node that is already a root needs no second look.
            if not view.ran(a, b) or view.outputs[a] is view.outputs[b] or view.node.name in self.roots[a, b]:
                continue
            outputs = zip(counted, view.output_ids(a), view.output_ids(b), strict=True)
            differences = [x != y and counts for counts, x, y in outputs]
            if any(differences):
                nodes.add(view.node.name)
                if any(
                    differs and equal_inputs
                    for differs, equal_inputs in zip(differences, view.inputs_agree(a, b), strict=True)
                ):
                    self.roots[a, b].add(view.node.name)


@dataclass(slots=True)
class Routes:
    """Routing flips of several walkers against the reference, per layer.

    attention_mask: bool [B, T], only these tokens count (None: all).
    """

    reference: WalkerName
    walkers: Sequence[WalkerName]
    attention_mask: torch.Tensor | None = None
    layers: dict[tuple[WalkerName, int], Flips] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if not view.node.op.role.routes:
            return
        assert view.node.layer is not None
        real = ... if self.attention_mask is None else self.attention_mask[slice(*view.wave)]
        for walker in self.walkers:
            if not view.ran(self.reference, walker):
                continue
            counts, _ = flips(view.tensor(self.reference)[real], view.tensor(walker)[real])
            key = (walker, view.node.layer)
            self.layers[key] = self.layers[key] + counts if key in self.layers else counts

    def join(self, part: Routes, rows: slice) -> None:
        """Add what another observer saw of later waves, the sequences `rows`."""
        for key, counts in part.layers.items():
            self.layers[key] = self.layers[key] + counts if key in self.layers else counts

    def joined(self, further: Routes) -> Routes:
        """Both together; for walkers that both have, this one's entry stays."""
        walkers = tuple(dict.fromkeys((*self.walkers, *further.walkers)))
        return Routes(self.reference, walkers, self.attention_mask, further.layers | self.layers)

    def total(self, walker: WalkerName) -> Flips | None:
        """One walker's flips, added over all layers; None for a model without routers."""
        counts = [flips for (name, _), flips in self.layers.items() if name == walker]
        return sum(counts[1:], counts[0]) if counts else None

    def flip_share(self, walker: WalkerName) -> float | None:
        """The fraction of token-layers with another expert set; None for a model without routers."""
        flips = self.total(walker)
        return None if flips is None else flips.set_flips / flips.tokens


@dataclass(slots=True)
class Logits:
    """Log-probability metrics of several walkers against the reference, summed per sequence.

    output: the node from which log-probabilities are read. gated: the quantities of which the gate's metric is made.
    first: int64 [B], for each sequence the first one with the same tokens.
    """

    output: str
    reference: WalkerName
    walkers: Sequence[WalkerName]
    input_ids: torch.Tensor
    loss_mask: torch.Tensor
    sampled_from: Literal["candidate", "reference"]
    first: torch.Tensor
    gated: tuple[str, ...] = ("k3",)
    parts: dict[WalkerName, list[SequenceSums]] = field(init=False)

    def __post_init__(self) -> None:
        """Start with nothing seen of any walker."""
        self.parts = {walker: [] for walker in self.walkers}

    @classmethod
    def of(cls, study: Study, walkers: Sequence[WalkerName], reference: WalkerName = REFERENCE) -> Logits:
        """An observer of these walkers on the tokens of a study."""
        ids, _, scored = study.outcomes_on_device
        sampler, first = study.recipe.tokens.sampler, study.first_occurrences
        return cls(study.model.graph.scores, reference, walkers, ids, scored, sampler, first, study.gated)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if view.node.name != self.output:
            return
        rows = slice(*view.wave)
        sums_by_bits: dict[tuple[bool, bool, tuple[Ids, ...]], SequenceSums] = {}
        for walker in self.walkers:
            kind = (reports(view, walker), truncates(view, walker), tuple(view.output_ids(walker)))
            if kind not in sums_by_bits:
                tokens = self.input_ids[rows], self.loss_mask[rows]
                sums_by_bits[kind] = seen_metrics(view, self.reference, walker, *tokens, self.sampled_from).sums(
                    self.gated
                )
            self.parts[walker].append(sums_by_bits[kind])

    def join(self, part: Logits, rows: slice) -> None:
        """Add what another observer saw of later waves, the sequences `rows`."""
        for walker, sums in part.parts.items():
            self.parts[walker] += sums

    def joined(self, further: Logits) -> Logits:
        """Both together; for walkers that both have, this one's entry stays."""
        walkers = tuple(dict.fromkeys((*self.walkers, *further.walkers)))
        union = replace(self, walkers=walkers)
        union.parts = further.parts | self.parts
        return union

    def sums(self, walker: WalkerName) -> SequenceSums:
        """The sums of one walker; sequences with the same tokens count once."""
        return SequenceSums.concatenate(self.parts[walker]).once(self.first)


def seen_metrics(
    view: NodeView,
    reference: WalkerName,
    candidate: WalkerName,
    input_ids: torch.Tensor,
    loss_mask: torch.Tensor,
    sampled_from: Literal["candidate", "reference"],
) -> TokenMetrics:
    """`token_metrics` of two walkers, from a view of the node from which log-probabilities are read."""
    return token_metrics(
        view.tensor(reference),
        view.tensor(candidate),
        input_ids,
        loss_mask,
        sampled_from=sampled_from,
        reported=(reports(view, reference), reports(view, candidate)),
        truncated=(truncates(view, reference), truncates(view, candidate)),
    )


def reports(view: NodeView, walker: WalkerName) -> bool:
    """Whether a walker's values here are log-probabilities that it reports, rather than logits."""
    if not view.node.op.role.reports:
        return False
    return walker in view.regions or view.active[walker]["form"] != UNROUNDED


def truncates(view: NodeView, walker: WalkerName) -> bool:
    """Whether -inf among a walker's values here stands for a token that it leaves out of what it samples from."""
    if walker in view.regions or not view.node.op.role.reports:
        return False
    return view.node.op.role.truncates(cast("Mapping[str, Value]", view.active[walker]))
