"""Logs of RL frameworks: which log-probabilities a sampler and a trainer gave the same tokens; `docs/logs.md`."""

from __future__ import annotations

from moeparity.logs.formats.format import Format
from moeparity.logs.formats.registry import FORMATS
from moeparity.logs.open import Join, Log, open  # noqa: A004
from moeparity.logs.record import Sampling, Sequence

__all__ = ["FORMATS", "Format", "Join", "Log", "Sampling", "Sequence", "open"]
