"""How far the reference lies from itself; plain data."""

from __future__ import annotations

from dataclasses import dataclass

from moeparity.metrics.verdict import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorTrial:
    """The reference under another micro-batch or other orders, against itself.

    `value` is the gate's metric, on the recipe's tokens; `bit_identical`: all logits have the reference's bits;
    `flipped_routes`: share of token-layers with another expert set, None for a model without a router.
    """

    name: str
    value: Interval
    bit_identical: bool
    flipped_routes: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """All floor trials, the largest value among them, and the candidate's over it (None over a floor of 0)."""

    trials: tuple[FloorTrial, ...]
    largest: float
    bit_identical: bool
    ratio: float | None
    reading: tuple[str, ...]
