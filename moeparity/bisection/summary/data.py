"""The report in seven lines; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The seven lines: what a reader wants to know first.

    verdict: the gate's metric and its gate, or why it is open. but: choices of kind `semantics` that have an effect
    although the gate passes. record: whether what an engine recorded is reproduced. starts: the first root, its choice
    with both values, and the evidence for them. blame: who makes the divergence and by how much, or that it can't be
    told. to_set: what to set, on which side, with which flag. floor: how far the reference differs from itself. sure:
    what all of this rests on.
    """

    verdict: str
    but: tuple[str, ...] = ()
    record: str
    starts: str
    blame: str
    to_set: str
    floor: str
    sure: str
