"""Logs measured: from files of log-probabilities to a `LogReport`."""

from __future__ import annotations

from moeparity.measuring.asked import Asked, LogGate, read_gate
from moeparity.measuring.files import NotDrawnError, Opening, measure_check, measure_files
from moeparity.measuring.measurement import Measurement, interval, measure
from moeparity.measuring.repeated import RepeatedRuns, measure_repeats

__all__ = [
    "Asked",
    "LogGate",
    "Measurement",
    "NotDrawnError",
    "Opening",
    "RepeatedRuns",
    "interval",
    "measure",
    "measure_check",
    "measure_files",
    "measure_repeats",
    "read_gate",
]
