"""Users' functions that gave other bits when they were called again on the same input; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NotDeterministic:
    """A user's function (`call`) of one side that gave other bits when it was called again on the same input.

    node: the node whose value it computes. values: how many values differ, of the `of` that the further calls gave.
    calls: how often it was called again.
    """

    side: str
    call: str
    node: str
    values: int
    of: int
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Determinism:
    """The users' functions that are not deterministic; empty where all are, or none runs."""

    not_deterministic: tuple[NotDeterministic, ...]
