"""Compares pairs of compositions: the first op that varies, where and at which shapes, and log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from moeparity.bisection.context import filled
from moeparity.bisection.divergence.extent import other_values
from moeparity.bisection.observers import seen_metrics
from moeparity.bisection.variance.compositions import Composition, Group
from moeparity.bisection.variance.report import (
    Comparison,
    Distance,
    FirstOp,
    GroupVariance,
    LayerVariance,
    Ratio,
    Rows,
)
from moeparity.engine.grid import Turn
from moeparity.engine.view import NodeView
from moeparity.engine.walker import Walker, WalkerName
from moeparity.metrics.tokens import TokenMetrics
from moeparity.plan.graph import Graph, Node
from moeparity.plan.schedule.settings import described
from moeparity.plan.schedule.steps import Schedule, Span
from moeparity.plan.schedule.token_grid import TokenGrid


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """Which tokens an engine computes under a schedule, bool [B, T], in its layers and in its head.

    Padding, filler and rows whose logits nobody reads are in neither.
    """

    layers: Tensor
    head: Tensor

    @classmethod
    def of(cls, schedule: Schedule, real: Tensor) -> Computed:
        """The tokens of a schedule; `real`, bool [B, T], marks those that are not padding."""
        layers, head = torch.zeros_like(real), torch.zeros_like(real)
        for step in schedule.steps:
            if not step.filler:
                _mark(layers, [Span(part.sequence, part.first, part.last) for part in step.parts])
                _mark(head, step.scored_spans)
        return cls(layers=layers & real, head=head & real)

    def __and__(self, addend: Computed) -> Computed:
        """The tokens that both compute."""
        return Computed(layers=self.layers & addend.layers, head=self.head & addend.head)


def _mark(tokens: Tensor, spans: Sequence[Span]) -> None:
    for span in spans:
        tokens[span.sequence, span.first : span.last] = True


@dataclass(slots=True, kw_only=True)
class Varying:
    """The first node at which two compositions differ: its index in the graph, and the tokens that differ, bool [B, T].

    rows: what the op got at once in both compositions, for the first of these tokens.
    """

    node: Node
    place: int
    tokens: Tensor
    token: tuple[int, int]
    rows: tuple[Rows, Rows]


@dataclass(slots=True, kw_only=True)
class AfterLayer:
    """What varies in one layer: the index of the first node that does, and how many tokens have other bits after the
    layer.
    """

    first: int | None = None
    tokens: int = 0


@dataclass(slots=True, kw_only=True)
class Compared:
    """What was seen of one pair. metrics: by wave, of the tokens that both compositions score. after_layers: by the
    last node of each layer.
    """

    computed: Computed
    after_layers: dict[str, AfterLayer]
    varying: Varying | None = None
    metrics: list[TokenMetrics] = field(default_factory=list)


@dataclass(slots=True)
class Variance:
    """Compares pairs of walkers: a group's first composition and another one.

    The first node that differs has read equal bits, since everything before it is equal at all tokens that count
    (positions and masks, which differ in some packs, aside). input_ids: int64 [B, T]; loss_mask, real: bool [B, T].
    """

    graph: Graph
    pairs: Sequence[tuple[Walker, Walker]]
    input_ids: Tensor
    loss_mask: Tensor
    real: Tensor
    compared: Mapping[tuple[WalkerName, WalkerName], Compared] = field(init=False)
    _places: Mapping[str, int] = field(init=False)
    _last: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        """Start with nothing seen of any pair."""
        self._places = {node.name: place for place, node in enumerate(self.graph.nodes)}
        self._last = last_nodes(self.graph)
        computed = {
            walker.name: Computed.of(walker.schedule.on(*self.real.shape), self.real.cpu())
            for pair in self.pairs
            for walker in pair
        }
        self.compared = {
            (a.name, b.name): Compared(
                computed=computed[a.name] & computed[b.name],
                after_layers={last: AfterLayer() for last in self._last.values()},
            )
            for a, b in self.pairs
        }

    def of(self, walkers: Sequence[Walker]) -> list[Compared]:
        """What was seen of a group: of each pair of its first walker and another one."""
        first, *others = walkers
        return [self.compared[first.name, second.name] for second in others]

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        for first, second in self.pairs:
            if not view.ran(first.name, second.name):
                continue
            compared = self.compared[first.name, second.name]
            self._compare(view, first, second, compared)
            if view.node.name == self.graph.scores:
                compared.metrics.append(self._metrics(view, first, second, compared))

    def _compare(self, view: NodeView, first: Walker, second: Walker, compared: Compared) -> None:
        """Keep the first node that differs, of all and of its layer; at the end of a layer, what differs behind it."""
        earlier, place = compared.varying, self._places[view.node.name]
        last = self._last.get(view.node.name)
        after_layers = None if last is None else compared.after_layers[last]
        is_known_layer = after_layers is None or (after_layers.first is not None and after_layers.first <= place)
        if earlier is not None and earlier.place < place and is_known_layer and last != view.node.name:
            return
        if view.output_ids(first.name) == view.output_ids(second.name):
            return
        rows = slice(*view.wave)
        counted = compared.computed.head if view.node.op.role.family == "head" else compared.computed.layers
        differing = other_values(view, first.name, second.name, counted[rows])
        if not bool(differing.any()):
            return
        if after_layers is not None:
            after_layers.first = place if after_layers.first is None else min(after_layers.first, place)
            after_layers.tokens += int(differing.sum()) if last == view.node.name else 0
        if earlier is None or place <= earlier.place:
            self._note(view, (first, second), compared, differing)

    def _note(self, view: NodeView, pair: tuple[Walker, Walker], compared: Compared, differing: Tensor) -> None:
        """Keep the first node that differs, or add the tokens that differ there in another wave."""
        earlier, place, rows = compared.varying, self._places[view.node.name], slice(*view.wave)
        if earlier is not None and earlier.place == place:
            earlier.tokens[rows] = differing
            return
        tokens = torch.zeros_like(compared.computed.layers)
        tokens[rows] = differing
        sequence, column = tokens.nonzero()[0].tolist()
        first, second = pair
        shapes = _rows(view, first, sequence, column), _rows(view, second, sequence, column)
        compared.varying = Varying(node=view.node, place=place, tokens=tokens, token=(sequence, column), rows=shapes)

    def _metrics(self, view: NodeView, first: Walker, second: Walker, compared: Compared) -> TokenMetrics:
        """Metrics of the second walker against the first; delta is current - previous, as in a ratio."""
        rows = slice(*view.wave)
        scored = self.loss_mask[rows].clone()
        scored[:, 1:] &= compared.computed.head[rows, :-1].to(scored.device)
        return seen_metrics(view, first.name, second.name, self.input_ids[rows], scored, "reference")


def last_nodes(graph: Graph) -> Mapping[str, str]:
    """Node -> the last node of its layer, in the order of the graph. The node from which log-probabilities are read
    stands for itself; other nodes outside the layers are left out.
    """
    ends = {node.layer: node.name for node in graph.nodes if node.layer is not None}
    inside = {node.name: ends[node.layer] for node in graph.nodes if node.layer is not None}
    return {**inside, graph.scores: graph.scores}


def _rows(view: NodeView, walker: Walker, sequence: int, column: int) -> Rows:
    """The rows that an op gets together with one token."""
    all_turns = view.grid.head_turns if view.node.op.role.family == "head" else view.grid.turns
    place = sequence * view.grid.length + column
    turn = next(turn for turn in all_turns[walker.schedule][view.wave] if bool((turn.batch.index == place).any()))
    if not view.node.op.tokens.by_sequence:
        return _of(turn)
    replaced = walker.name in view.regions
    op = view.node.op
    varlen = op.tokens.state is not None or (
        not replaced and op.tokens.varlen(walker.plan.at(turn.sizes).active(view.node))
    )
    return _attended(turn, place, varlen=varlen)


def _of(turn: Turn) -> Rows:
    sequences, tokens = turn.batch.size
    return Rows(sequences=sequences, tokens=tokens, padding=turn.padding, phase=turn.phase)


def _attended(turn: Turn, place: int, *, varlen: bool) -> Rows:
    """The rows that attention takes at once, and how many keys it reads."""
    queries = next(batch for batch in turn.queries(varlen=varlen) if bool((batch.index == place).any()))
    sequences, tokens = queries.size
    return Rows(sequences=sequences, tokens=tokens, phase=turn.phase, keys=turn.keys(queries).size[1])


def group_variance(group: Group, compared: Sequence[Compared], grid: TokenGrid, graph: Graph) -> GroupVariance:
    """The data of a group; `compared` has the pairs of its first composition with each other one, in order."""
    first, *others = group.compositions
    return filled(
        GroupVariance,
        group,
        against=first.name,
        comparisons=tuple(
            _comparison(second, pair, grid, graph) for second, pair in zip(others, compared, strict=True)
        ),
    )


def _comparison(composition: Composition, pair: Compared, grid: TokenGrid, graph: Graph) -> Comparison:
    metrics = pair.metrics
    return Comparison(
        composition=composition.name,
        schedule=described(composition.settings),
        first_op=None if pair.varying is None else _first_op(pair.varying, pair, grid),
        layers=tuple(_layers(pair, graph)),
        ratio=ratio(_scored(metrics, [each.delta for each in metrics], finite=False)),
        distance=_distance(metrics),
    )


def _layers(pair: Compared, graph: Graph) -> Iterator[LayerVariance]:
    nodes = {node.name: node for node in graph.nodes}
    for last, after_layers in pair.after_layers.items():
        node = nodes[last]
        computed = pair.computed.head if node.op.role.family == "head" else pair.computed.layers
        yield LayerVariance(
            name=last if node.layer is None else f"layers[{node.layer}]",
            first_node="" if after_layers.first is None else graph.nodes[after_layers.first].name,
            tokens=after_layers.tokens,
            computed=int(computed.sum()),
        )


def _first_op(varying: Varying, pair: Compared, grid: TokenGrid) -> FirstOp:
    computed = pair.computed.head if varying.node.op.role.family == "head" else pair.computed.layers
    sequence, column = varying.token
    against, rows = varying.rows
    return FirstOp(
        node=varying.node.name,
        op=varying.node.op.name,
        layer=varying.node.layer,
        sequences=int(varying.tokens.any(-1).sum()),
        tokens=int(varying.tokens.sum()),
        computed=int(computed.sum()),
        sequence=sequence,
        token=column - grid.spans[sequence][0],
        against=against,
        rows=rows,
    )


def ratio(delta: Tensor) -> Ratio:
    """The ratios of scored tokens, from delta, fp64 [N], in nats. A NaN counts as off, and is in no other figure."""
    ratios = delta.exp()
    finite = ratios[~ratios.isnan()]
    low, high, mean = (finite.min(), finite.max(), finite.mean()) if len(finite) else torch.full((3,), torch.nan)
    return Ratio(scored=len(ratios), off=int((ratios != 1).sum()), low=float(low), high=float(high), mean=float(mean))


def _distance(metrics: Sequence[TokenMetrics]) -> Distance:
    delta = _scored(metrics, [each.delta for each in metrics])
    magnitude = delta.abs()
    return Distance(
        mean_abs_delta=_mean(magnitude),
        max_abs_delta=float(magnitude.max()) if len(magnitude) else torch.nan,
        mult_prob_error=1 + _mean(magnitude.expm1()),
        k3=_mean(_scored(metrics, [each.k3 for each in metrics])),
        kl=_mean(_scored(metrics, [each.kl_candidate_reference for each in metrics])),
        unequal=int(sum(int((each.unequal.bool() & each.scored).sum()) for each in metrics)),
        nonfinite=int(sum(int((each.nonfinite.bool() & each.scored).sum()) for each in metrics)),
    )


def _scored(metrics: Sequence[TokenMetrics], values: Sequence[Tensor], *, finite: bool = True) -> Tensor:
    """Values [B, T] of all waves at the scored tokens, fp64 [N]; unless `finite` is False, only finite ones, of
    tokens that both sides keep.
    """
    masks = [each.scored & ~each.nonfinite & ~each.outside if finite else each.scored for each in metrics]
    return torch.cat([value[mask] for value, mask in zip(values, masks, strict=True)])


def _mean(values: Tensor) -> float:
    return float(values.mean()) if len(values) else torch.nan
