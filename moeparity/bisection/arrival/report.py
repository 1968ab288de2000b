"""Draws of the sides that add in order of arrival; plain data."""

from __future__ import annotations

from dataclasses import dataclass

from moeparity.metrics.verdict import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalDraw:
    """One draw of a side that adds in order of arrival, against the reference's own draw; 0 is the recipe's."""

    side: str
    draw: int
    value: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """All draws; `disputed`: the verdict is not the same on all of the candidate's."""

    draws: tuple[ArrivalDraw, ...]
    disputed: bool
    reading: tuple[str, ...]
