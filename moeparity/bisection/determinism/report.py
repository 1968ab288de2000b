"""Users' functions that gave other bits when called again; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NotDeterministic:
    """The function `call` of a side, in whose stead at `node` it gave other bits when called again on the same input.

    values: how many differ, of all that the second calls gave (`of`); calls: how often it was called again there.
    """

    side: str
    call: str
    node: str
    values: int
    of: int
    calls: int
