"""Both sides as they ran, what they ran on, and what that cost; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One side as it ran; `placement` as in `tensor 4, expert 2`, empty on one rank.

    schedule: what is computed together, in words; `micro_batch` where it is nothing else.
    """

    profile: str
    dtype: str
    micro_batch: int | None
    schedule: str
    placement: str = ""

    def __str__(self) -> str:
        """`hf-default, bf16, micro-batch 8`, and its placement."""
        suffix = f", {self.placement}" if self.placement else ""
        return f"{self.profile}, {self.dtype}, {self.schedule}{suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What was run, and on what. variants: walkers that are no shadows."""

    recipe: str
    checkpoint: str
    model_type: str
    sequences: int
    tokens_per_sequence: int
    scored_tokens: int
    sampled_from: str
    device: str
    cpu: str
    torch: str
    threads: int
    variants: int
    pads: int = 0
    sampling: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a run cost: it differs from run to run, in time and with the memory that is free, and no digest holds it.

    evaluations: kernel calls; `naive_evaluations` are those without sharing. seconds: of the bisection's own passes;
    search_passes, search_seconds: of what was run beyond these for shares and fixes. Memory is in bytes.
    """

    evaluations: int
    naive_evaluations: int
    weight_bytes_read: int
    seconds: float
    memory_estimated: int
    memory_peak: int | None
    search_passes: int = 0
    search_seconds: float = 0.0
