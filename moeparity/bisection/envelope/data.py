"""Whether another legal order of the same sums gives the values that the candidate's op gives; plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EnvelopeVerdict = Literal["inside", "one_sided", "outside", "not_drawn"]
"""Whether each side's value lies in the other side's band, as `EnvelopedNode.verdict` spells it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderBand:
    """One side's value against the band of the other side: the range of that side's own value and its legal orders.

    Both sides compute on the reference's inputs. elements: compared. differing: those with other bits than the band's
    own side. outside: those of them outside the band; furthest: by how much at most, in ulps at the row's largest
    magnitude.
    draws_outside: how many elements one draw has outside the band of the other draws, at most. varying: elements that
    differ between draws.
    """

    elements: int
    differing: int
    outside: int
    furthest: float
    draws_outside: int
    varying: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopedNode:
    """A node at which the candidate's numerics give other bits than the reference's on the reference's inputs.

    root: in the run itself, some sequence's inputs are equal there. tokens: for how many tokens orders were drawn.
    reference: the candidate's value in the reference's band. candidate: the reference's value in the candidate's band,
    looked at if the former lies inside. not_drawn: why there is no band.
    verdict: `inside`, `one_sided` (only the candidate's value lies in the other's band), `outside` or `not_drawn`.
    """

    node: str
    op: str
    root: bool
    verdict: EnvelopeVerdict
    tokens: int
    reference: OrderBand | None
    candidate: OrderBand | None
    not_drawn: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """All such nodes in the model's order, how many orders were drawn at each, and what they mean in sentences."""

    draws: int
    nodes: tuple[EnvelopedNode, ...]
    reading: tuple[str, ...]
