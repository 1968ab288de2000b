"""What a report says of legal orders: whether another order of the same sums gives what the candidate's op gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["inside", "one_sided", "outside", "not_drawn"]
"""Where a value lies, beside the legal orders of the other side's sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderBand:
    """A value against one side's own value and legal orders of that side's numerics, on the reference's inputs.

    elements, differing, outside: compared, with other bits than the side's own value, and of these outside their band.
    furthest: how far outside at most, in ulps at the greatest magnitude of the row. draws_outside: the most elements
    that one draw has outside the band of the others. varying: elements that some draw changes.
    """

    elements: int
    differing: int
    outside: int
    furthest: float
    draws_outside: int
    varying: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopedNode:
    """A node where the candidate's numerics give other bits on the reference's inputs.

    verdict: `inside`, `one_sided` (the reference lies outside the candidate's band), `outside` or `not_drawn`.
    root: some sequence's inputs are equal there in the run itself. tokens: drawn for. reference: the candidate's value
    in the reference's band; candidate: the other way round, looked at where the first holds. not_drawn: why.
    """

    node: str
    op: str
    root: bool
    verdict: Verdict
    tokens: int
    reference: OrderBand | None
    candidate: OrderBand | None
    not_drawn: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """Every such node in the model's order, how many orders were drawn, and what they mean."""

    draws: int
    nodes: tuple[EnvelopedNode, ...]
    reading: tuple[str, ...]
