"""How far the reference differs from itself; plain data."""

from __future__ import annotations

from dataclasses import dataclass

from moeparity.metrics.verdict import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorTrial:
    """The reference under another micro-batch or other orders, compared with the reference itself.

    value: the gate's metric on the recipe's tokens. bit_identical: all logits have the reference's bits.
    flipped_routes: fraction of token-layers with another expert set; None for a model without routers.
    """

    name: str
    value: Interval
    bit_identical: bool
    flipped_routes: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """All floor trials. largest: the largest value among them. ratio: the candidate's value over it; None if it is
    0.
    """

    trials: tuple[FloorTrial, ...]
    largest: float
    bit_identical: bool
    ratio: float | None
    reading: tuple[str, ...]
