"""Draws of the sides that add in order of arrival; plain data."""

from __future__ import annotations

from dataclasses import dataclass

from moeparity.metrics.verdict import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalDraw:
    """One draw of a side that adds in order of arrival, in the gate's metric.

    A candidate's draw is compared with the reference, a reference's further draw with the reference's own. Draw 0 is
    the one that the recipe's seeds give.
    """

    side: str
    draw: int
    value: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """All draws. `disputed`: the candidate's draws do not all get the same verdict."""

    draws: tuple[ArrivalDraw, ...]
    disputed: bool
    reading: tuple[str, ...]
