"""How the error of the residual stream grows from layer to layer, and in which layers tokens flip; plain data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from moeparity.bisection.divergence.data import LayerGrowth
from moeparity.bisection.flips.data import RoutingFlips

JUMP = 2.0
"""A step by this factor or more stands out: after the first layers, noise that only adds up stays below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthStep:
    """The growth into one layer: `factor` is the relative L2 error after it over that after the layer before.

    flips: the number of tokens with another expert set in this layer; None if the layer has no router.
    """

    layer: str
    factor: float
    flips: int | None


def steps(growth: Sequence[LayerGrowth], flips: RoutingFlips | None) -> tuple[GrowthStep, ...]:
    """Every step between neighbouring layers. Where the error before a layer is 0 there is no factor, so no step."""
    counts = {} if flips is None else {f"layers[{layer.layer}]": layer.set_flips for layer in flips.layers}
    layers = [layer for layer in growth if layer.name.startswith("layers")]
    return tuple(
        GrowthStep(
            layer=layer.name,
            factor=layer.carried.relative_l2 / predecessor.carried.relative_l2,
            flips=counts.get(layer.name),
        )
        for predecessor, layer in pairwise(layers)
        if predecessor.carried.relative_l2 != 0
    )


def largest(selection: Iterable[GrowthStep]) -> float:
    """The largest factor; NaN if some factor is NaN or there is no step."""
    factors = [step.factor for step in selection]
    return math.nan if not factors or any(map(math.isnan, factors)) else max(factors)
