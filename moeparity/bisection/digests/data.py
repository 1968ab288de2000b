"""The bits of a run as digests; plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DIGITS = 16
"""How many hex digits of a SHA-256 a digest has."""
NOT_FINITE = " not finite"
"""What follows the digest of values if some of them are NaN or infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Digests:
    """Digests (16 hex digits of a SHA-256) of everything that decides the bits of a run, and of its values.

    machine: in words, what of the machine decides bits: instruction set, torch, threads, device. tokens: ids, masks and
    records. weights: by node, all its tensors as they lie in the checkpoint. reference, candidate: by node, the side's
    values at all tokens that it computes; nodes inside a user's function have none.
    """

    machine: str
    tokens: str
    weights: Mapping[str, str]
    reference: Mapping[str, str]
    candidate: Mapping[str, str]
