"""How the error of the stream grows from one layer to the next, and in which layers tokens flip; plain data."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from moeparity.bisection.report import Report

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


def steps(report: Report) -> tuple[Step, ...]:
    """Every step between neighbouring layers; none into the layer where the difference starts."""
    flips = {} if report.flips is None else {f"layers[{f.layer}]": f.set_flips for f in report.flips.layers}
    layers = [layer for layer in report.growth if layer.name.startswith("layers")]
    return tuple(
        Step(layer=now.name, factor=now.carried.relative_l2 / before.carried.relative_l2, flips=flips.get(now.name))
        for before, now in pairwise(layers)
        if before.carried.relative_l2 != 0
    )


def largest(found: Iterable[Step]) -> float:
    """The largest factor; NaN where one is, or where there is no step."""
    factors = [step.factor for step in found]
    return math.nan if not factors or any(map(math.isnan, factors)) else max(factors)
