"""Both sides against the fp64 run; plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from moeparity.metrics.verdict import Interval

Standing = Literal["nearer", "farther", "level", "undecided"]
"""How near the truth the candidate is shown to be, beside the reference."""


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
    standing: Standing
    reading: str
    layers: tuple[OracleNode, ...]
    nodes: tuple[OracleNode, ...]
