"""The first values of each side that are not finite; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstNonfinite:
    """The first node of a side, in the order of the graph, with values that are not finite at real or at padded tokens.

    nan, infinite: how many values of that node; sequences, tokens: in which they stand.
    sequence, position: the first of these tokens, counted from 0.
    expert: whose row holds it, where the node computes the experts' rows; None elsewhere, and where a user's function
        hides the routes.
    padding: these tokens are padding; else they are real.
    """

    side: str
    node: str
    op: str
    nan: int
    infinite: int
    sequences: int
    tokens: int
    sequence: int
    position: int
    expert: int | None
    padding: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Nonfinite:
    """Where NaN and infinities start, and which toggles make them.

    first: at most one of each side for real tokens, and one for padding, in the order of the graph.
    made_by: toggles that alone give the reference scored tokens that are not finite, where it has none.
    ended_by: toggles that, restored alone, leave the candidate none.
    """

    first: tuple[FirstNonfinite, ...]
    made_by: tuple[str, ...]
    ended_by: tuple[str, ...]
    reading: tuple[str, ...]
