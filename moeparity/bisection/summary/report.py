"""The report in seven lines; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a reader wants to know first, a sentence each.

    verdict: the gate's metric and its gate, or why it is open. record: whether what an engine recorded is reproduced.
    starts: the first root, its choice with both values, and how sure they are. blame: who makes the divergence, by how
    much, or that it cannot be told apart. to_set: what to set, on which side, with the flag. floor: how far the
    reference lies from itself. sure: what all of this rests on.
    """

    verdict: str
    record: str
    starts: str
    blame: str
    to_set: str
    floor: str
    sure: str
