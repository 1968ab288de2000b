"""What sees which tokens are computed together; plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Ops whose bits may depend on which tokens go through them together, with how many of their nodes, of each side.

    A side without any gives the same bits under every schedule.
    """

    reference: Mapping[str, int]
    candidate: Mapping[str, int]
    reading: tuple[str, ...]
