"""Logs measured: from files of log-probabilities to a `LogReport`."""

from __future__ import annotations

from moeparity.measuring.asked import Asked, LogGate, read_gate
from moeparity.measuring.files import Opening, measure_check, measure_files
from moeparity.measuring.measurement import Measurement, interval, measure

__all__ = [
    "Asked",
    "LogGate",
    "Measurement",
    "Opening",
    "interval",
    "measure",
    "measure_check",
    "measure_files",
    "read_gate",
]
