"""Both sides' distances from the oracle; plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from moeparity.metrics.verdict import Interval

Standing = Literal["nearer", "farther", "level", "undecided"]
"""Whether the candidate is nearer to the oracle than the reference is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """One side's distance from the oracle at a node: relative L2 (over the oracle's norm), and the largest
    difference.
    """

    relative_l2: float
    max_abs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleNode:
    """Both sides' distances from the oracle at one node.

    ratio: the candidate's L2 distance over the reference's; 1 if both are 0, inf if only the reference's is.
    """

    node: str
    op: str
    layer: int | None
    reference: Distance
    candidate: Distance
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle:
    """Both sides against the oracle: KL(side || oracle) in nats per token, and the distances at every node.

    kl_change: the candidate's KL minus the reference's, paired over sequences; it decides `standing`. layers: the last
    node of each layer, and the logits.
    """

    kl_reference: Interval
    kl_candidate: Interval
    kl_change: Interval
    standing: Standing
    reading: str
    layers: tuple[OracleNode, ...]
    nodes: tuple[OracleNode, ...]
