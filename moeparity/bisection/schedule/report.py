"""What sees which tokens are computed together, and how many steps of how many rows that makes; plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of one phase of a schedule: how many, and the fewest and most rows that an op of the layers sees at
    once, padding rows included; the head's ops may see fewer (0: none of a step).
    """

    phase: str
    steps: int
    least_rows: int
    most_rows: int
    least_head_rows: int
    most_head_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Ops whose bits may depend on which tokens go through them together, with how many of their nodes, of each side.

    A side without any gives the same bits under every schedule, unless tokens of a pack see those of other sequences.
    `reference_steps` and `candidate_steps` are what the engine computes, phase by phase; nothing that fills the grid.
    """

    reference: Mapping[str, int]
    candidate: Mapping[str, int]
    reference_steps: tuple[Steps, ...]
    candidate_steps: tuple[Steps, ...]
    reading: tuple[str, ...]
