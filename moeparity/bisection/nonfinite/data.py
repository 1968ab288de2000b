"""Each side's first values that are NaN or infinite; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstNonfinite:
    """The first node of a side, in the order of the graph, with NaN or infinite values; real tokens and padding apart.

    nan, infinite: how many values of that node. sequences, tokens: how many contain such a value.
    sequence, position: the first of these tokens, counted from 0.
    expert: the one whose row has such a value, if the node computes the experts' rows. None at other nodes, and if a
        user's function hides the routes.
    padding: whether these tokens are padding; else they are real.
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

    first: for each side at most one entry for real tokens and one for padding, in the order of the graph.
    made_by: toggles that alone make scored tokens of the reference not finite, if all of them are finite without.
    ended_by: toggles whose restoring leaves the candidate no scored token that is not finite.
    """

    first: tuple[FirstNonfinite, ...]
    made_by: tuple[str, ...]
    ended_by: tuple[str, ...]
    reading: tuple[str, ...]
