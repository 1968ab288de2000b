"""The bits of a run as digests; plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NOT_FINITE = " not finite"
"""Behind the digest of values among which some are NaN or infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Digests:
    """16 hex digits of a SHA-256 for everything whose bits decide the run, or come out of it.

    machine: what else decides bits: instruction set, torch, threads, device. tokens: ids, masks and records.
    weights: by node, of all its tensors as they lie in the checkpoint. reference, candidate: by node, of its values at
    all tokens that the side computes; nodes inside a user's function have none.
    """

    machine: str
    tokens: str
    weights: Mapping[str, str]
    reference: Mapping[str, str]
    candidate: Mapping[str, str]
