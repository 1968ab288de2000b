"""How the error of the stream grows from one layer to the next, and in which layers tokens flip; plain data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from moeparity.bisection.divergence.report import LayerGrowth
from moeparity.bisection.flips.report import RoutingFlips

JUMP = 2.0
"""From this factor on a step stands out: noise that only adds up stays below it after the first layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The relative L2 error after a layer as a multiple of that after the layer before.

    `flips` counts the tokens with another expert set in this layer; None where it routes nothing.
    """

    layer: str
    factor: float
    flips: int | None


def steps(growth: Sequence[LayerGrowth], flips: RoutingFlips | None) -> tuple[Step, ...]:
    """Every step between neighbouring layers; none into the layer where the difference starts."""
    counts = {} if flips is None else {f"layers[{layer.layer}]": layer.set_flips for layer in flips.layers}
    layers = [layer for layer in growth if layer.name.startswith("layers")]
    return tuple(
        Step(
            layer=layer.name,
            factor=layer.carried.relative_l2 / predecessor.carried.relative_l2,
            flips=counts.get(layer.name),
        )
        for predecessor, layer in pairwise(layers)
        if predecessor.carried.relative_l2 != 0
    )


def largest(selection: Iterable[Step]) -> float:
    """The largest factor; NaN where one is, or where there is no step."""
    factors = [step.factor for step in selection]
    return math.nan if not factors or any(map(math.isnan, factors)) else max(factors)
