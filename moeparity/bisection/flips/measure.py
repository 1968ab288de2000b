"""Turns a `Census` of routing flips into the report's data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from moeparity.bisection.context import Context, Measure, filled
from moeparity.bisection.flips import data
from moeparity.bisection.flips.census import AFTER_OTHER, AFTER_OWN, BINS, FLIPPED, ROOT, Census, MarginCounts
from moeparity.bisection.flips.data import LayerFlips, RoutingFlips
from moeparity.bisection.flips.observe import CENSUS
from moeparity.bisection.trials import alone, restored
from moeparity.metrics.interval import token_mean
from moeparity.metrics.routing import Drift, Flips, layers_per_token
from moeparity.plan.graph import Node
from moeparity.plan.toggles import Toggle

MOST_PAIRS = 1000
"""A report lists at most this many pairs of experts."""


def measure(of: Context) -> RoutingFlips | None:
    """The candidate's flips."""
    nodes = {node.name: node for node in of.study.model.graph.nodes}
    return routing_flips(of.observed.of_watch(CENSUS), nodes, of.study.trial_toggles)


def routing_flips(
    census: Census | None, nodes: Mapping[str, Node] | None = None, toggles: Sequence[Toggle] = ()
) -> RoutingFlips | None:
    """The flips of a candidate; None if no route was seen on both sides.

    nodes: by name; they tell the op of a node. toggles: those whose trials the census saw.
    """
    if census is None or not census.flips:
        return None
    layers = tuple(
        filled(LayerFlips, counts, layer=census.layers[place]) for place, counts in sorted(census.flips.items())
    )
    flip_map = census.has(FLIPPED)
    return RoutingFlips(
        layers=layers,
        tokens=_tokens(census),
        tokens_any_layer=int(flip_map.any(0).sum()),
        detail=_detail(census, nodes or {}, toggles),
    )


def _tokens(census: Census) -> int:
    """The number of tokens that were compared in some layer."""
    return int((census.map != 0).any(0).sum())


def _detail(census: Census, nodes: Mapping[str, Node], toggles: Sequence[Toggle]) -> data.FlipDetail:
    places = sorted(census.flips)
    # Recorded routes come without hidden states, weights and scores.
    with_values = bool(census.drift)
    margins = _margins(list(census.margins.values()))
    places_of = {name: place for place, name in enumerate(nodes)}
    pairs = Counter(
        {(census.layers[place], *pair): n for place in places for pair, n in census.pairs.get(place, Counter()).items()}
    )
    token_mask = (census.map != 0).any(0)
    layer_counts = layers_per_token(census.has(FLIPPED))[token_mask]
    return data.FlipDetail(
        rates=_rates(census),
        layers_per_token=tuple(torch.bincount(layer_counts, minlength=1).tolist()),
        origin=_origin(census, places) if with_values else None,
        margins=margins,
        layers=tuple(
            data.LayerDetail(
                layer=census.layers[place],
                origin=_origin(census, [place]) if with_values else None,
                weight_drift=census.drift[place].mean_abs if place in census.drift else None,
                margins=_margins([census.margins[place]]) if place in census.margins else None,
            )
            for place in places
        ),
        pairs=tuple(
            data.ExpertPair(layer=layer, reference=a, candidate=b, flips=n)
            for (layer, a, b), n in sorted(pairs.items(), key=lambda item: (-item[1], item[0]))[:MOST_PAIRS]
        ),
        distinct_pairs=len(pairs),
        left_at=tuple(
            data.LeftAt(node=name, op=nodes[name].op.name, through_others=through, tokens=n)
            for (name, through), n in sorted(
                census.left_at.items(), key=lambda item: (-item[1], places_of[item[0][0]], item[0][1])
            )
        ),
        choices=tuple(_choice(toggle, census) for toggle in toggles if _tried(toggle, census)),
        cost=_cost(census.cost),
    )


def _rates(census: Census) -> data.Rates:
    head, *tail = census.flips.values()
    total: Flips = sum(tail, head)
    layer_counts = layers_per_token(census.has(FLIPPED))[(census.map != 0).any(0)].double()
    drift = sum(census.drift.values(), Drift())
    return data.Rates(
        set_differs=_share(total.set_flips, total.tokens),
        any_layer=float((layer_counts > 0).double().mean()),
        layers_per_token=float(layer_counts.mean()),
        slot_overlap=1.0 - _share(total.slots_replaced, total.tokens * census.top_k),
        zero_overlap=_share(total.zero_overlap, total.tokens),
        ordered_slots=_share(total.slot_flips, total.tokens),
        weight_drift=drift.mean_abs if census.drift else None,
        weight_drift_max=drift.max_abs if census.drift else None,
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


def _origin(census: Census, places: Sequence[int]) -> data.Origin:
    layer_bits = census.map[list(places)]

    def count(bit: int) -> int:
        return int(((layer_bits & bit) != 0).sum())

    unknown = sum(census.unknown[place] for place in places)
    roots, after_own, after_others = count(ROOT), count(AFTER_OWN), count(AFTER_OTHER)
    return data.Origin(
        root_gate=sum(census.root_at[place, "gate"] for place in places),
        root_router=sum(census.root_at[place, "router"] for place in places),
        after_own=after_own,
        after_others=after_others,
        before_any=count(FLIPPED) - roots - after_own - after_others - unknown,
        unknown=unknown,
    )


def _margins(layers: Sequence[MarginCounts]) -> data.Margins | None:
    """The margins of several layers, added up."""
    if not layers:
        return None
    bins = torch.stack([margins.bins for margins in layers]).sum(0)
    margins_of_all, margins_of_flips, perturbations_of_all, perturbations_of_flips = bins.tolist()
    dtypes = dict.fromkeys(margins.dtype for margins in layers)
    return data.Margins(
        dtype=" and ".join(dtypes),
        bins=tuple(
            data.MarginBin(low=_edge(i), high=_edge(i + 1), token_layers=margins_of_all[i], flips=margins_of_flips[i])
            for i in range(BINS)
            if margins_of_all[i]
        ),
        ties=sum(margins.ties for margins in layers),
        tie_flips=sum(margins.tie_flips for margins in layers),
        group_flips=sum(margins.group_flips for margins in layers),
        within_reach=sum(margins.within_reach for margins in layers),
        median_margin=_median(margins_of_all),
        median_margin_of_flips=_median(margins_of_flips),
        median_perturbation=_median(perturbations_of_all),
        median_perturbation_of_flips=_median(perturbations_of_flips),
    )


def _edge(i: int) -> float:
    """The lower edge of bin `i`, in ulps."""
    return 0.0 if i == 0 else math.inf if i == BINS else 2.0 ** (i - 1)


def _median(counts: Sequence[int]) -> tuple[float, float] | None:
    """The bin that holds the lower median."""
    remainder = (sum(counts) + 1) // 2
    for i, count in enumerate(counts):
        remainder -= count
        if count and remainder <= 0:
            return _edge(i), _edge(i + 1)
    return None


def _tried(toggle: Toggle, census: Census) -> bool:
    """Whether a trial of the toggle ran in the pass of the census."""
    return bool({alone(toggle), restored(toggle)} & census.also.keys())


def _choice(toggle: Toggle, census: Census) -> data.ChoiceFlips:
    flips = int(census.has(FLIPPED).sum())
    alone_flips, restored_flips = census.also.get(alone(toggle)), census.also.get(restored(toggle))
    return data.ChoiceFlips(
        name=toggle.name, alone=alone_flips, gone=None if restored_flips is None else flips - restored_flips
    )


def _cost(cost: torch.Tensor | None) -> data.FlipCost | None:
    if cost is None:
        return None
    kl = cost[:, 1].sum(-1)
    share = float(kl[1] / kl.sum()) if bool(kl.any()) else None
    return data.FlipCost(flipped=_cost_of(cost[1]), unflipped=_cost_of(cost[0]), kl_share=share)


def _cost_of(sums: torch.Tensor) -> data.CostOf | None:
    tokens = sums[0]
    if not bool(tokens.any()):
        return None

    def mean(values: torch.Tensor) -> data.Mean:
        return filled(data.Mean, token_mean(values, tokens))

    return data.CostOf(tokens=int(tokens.sum()), kl=mean(sums[1]), k3=mean(sums[2]), abs_delta=mean(sums[3]))


MEASURE = Measure(gives=RoutingFlips, measure=measure, watch=CENSUS)
