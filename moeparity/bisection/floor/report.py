"""What a report says beside the verdict: the floor under it, and which side is nearer the oracle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalDraw:
    """One draw of a side that adds in order of arrival, against the reference's own draw; 0 is the recipe's."""

    side: str
    draw: int
    value: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """All draws; `disputed`: the verdict is not the same on all of the candidate's."""

    draws: tuple[ArrivalDraw, ...]
    disputed: bool
    reading: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """One side's distance from the oracle at a node: Euclidean, relative to the oracle's norm; and the largest."""

    relative_l2: float
    max_abs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleNode:
    """Both sides' distances from the oracle at one node, and the candidate's over the reference's in L2.

    `ratio` is 1 where both sides have the oracle's values, inf where only the reference has.
    """

    node: str
    op: str
    layer: int | None
    reference: Distance
    candidate: Distance
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle:
    """Both sides against the oracle: KL(side || oracle) in nats per token, and the distances of every node.

    `kl_change` is the candidate's KL minus the reference's, paired over sequences, and `standing` what it decides.
    `layers` are the nodes that close each layer, and the logits.
    """

    kl_reference: Interval
    kl_candidate: Interval
    kl_change: Interval
    standing: Literal["nearer", "farther", "level", "undecided"]
    reading: str
    layers: tuple[OracleNode, ...]
    nodes: tuple[OracleNode, ...]
