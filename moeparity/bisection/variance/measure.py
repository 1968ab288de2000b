"""Turns what was seen of pairs of compositions into comparisons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from moeparity.bisection.variance.compositions import Composition, Group
from moeparity.bisection.variance.observe import Compared, Varying
from moeparity.bisection.variance.report import (
    Comparison,
    Distance,
    FirstOp,
    GroupVariance,
    LayerVariance,
    Ratio,
)
from moeparity.metrics.tokens import TokenMetrics
from moeparity.plan.graph import Graph
from moeparity.plan.schedule.settings import described
from moeparity.plan.schedule.token_grid import TokenGrid


def group_variance(group: Group, compared: Sequence[Compared], grid: TokenGrid, graph: Graph) -> GroupVariance:
    """The data of a group; `compared` has the pairs of its first composition with each other one, in order."""
    first, *others = group.compositions
    return GroupVariance(
        kind=group.kind,
        against=first.name,
        is_one_model=group.is_one_model,
        comparisons=tuple(
            _comparison(second, pair, grid, graph) for second, pair in zip(others, compared, strict=True)
        ),
        left_out=group.left_out,
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
    for last, behind in pair.behind.items():
        node = nodes[last]
        computed = pair.computed.head if node.op.family == "head" else pair.computed.layers
        yield LayerVariance(
            name=last if node.layer is None else f"layers[{node.layer}]",
            first_node="" if behind.first is None else graph.nodes[behind.first].name,
            tokens=behind.tokens,
            computed=int(computed.sum()),
        )


def _first_op(varying: Varying, pair: Compared, grid: TokenGrid) -> FirstOp:
    computed = pair.computed.head if varying.node.op.family == "head" else pair.computed.layers
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
        k3=_mean(_scored(metrics, [each.k3 for each in metrics])),
        kl=_mean(_scored(metrics, [each.kl_candidate_reference for each in metrics])),
        unequal=int(sum(int((each.unequal.bool() & each.scored).sum()) for each in metrics)),
        nonfinite=int(sum(int((each.nonfinite.bool() & each.scored).sum()) for each in metrics)),
    )


def _scored(metrics: Sequence[TokenMetrics], values: Sequence[Tensor], *, finite: bool = True) -> Tensor:
    """Values [B, T] of all waves at the scored tokens, fp64 [N]; only finite ones unless `finite` is False."""
    masks = [each.scored & ~each.nonfinite if finite else each.scored for each in metrics]
    return torch.cat([value[mask] for value, mask in zip(values, masks, strict=True)])


def _mean(values: Tensor) -> float:
    return float(values.mean()) if len(values) else torch.nan
