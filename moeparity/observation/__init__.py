"""Passes over a plan, and what they saw."""

from __future__ import annotations

from moeparity.observation.observe import observe
from moeparity.observation.observed import Observed, codec, measured, total_kl
from moeparity.observation.observers import ranking
from moeparity.observation.trials import ARRIVAL, FLOOR, SHADOW, alone, forced, restored

__all__ = [
    "ARRIVAL",
    "FLOOR",
    "SHADOW",
    "Observed",
    "alone",
    "codec",
    "forced",
    "measured",
    "observe",
    "ranking",
    "restored",
    "total_kl",
]
