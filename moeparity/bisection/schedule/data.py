"""Which ops depend on which tokens are computed together, and the steps of each side; plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of one phase of a schedule: how many, and the fewest and most rows that the layers' ops get at once,
    padding rows included. The head's ops may get fewer (0: none in a step).
    """

    phase: str
    steps: int
    least_rows: int
    most_rows: int
    least_head_rows: int
    most_head_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """By side, the ops whose bits may depend on which tokens go through them together, with how many of their nodes.

    A side without any gives the same bits under every schedule, unless tokens of a pack see those of other sequences.
    reference_steps, candidate_steps: the steps that the engine makes, by phase, without filler.
    """

    reference: Mapping[str, int]
    candidate: Mapping[str, int]
    reference_steps: tuple[Steps, ...]
    candidate_steps: tuple[Steps, ...]
    reading: tuple[str, ...]
