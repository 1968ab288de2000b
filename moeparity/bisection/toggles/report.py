"""What each difference does alone, and what restoring it alone does; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """One trial: KL(trial || reference) and k3 in nats per token, share of flipped token-layers, nodes changed.

    `flipped_routes` is None where there are no routes to compare.
    """

    kl: float
    k3: float
    flipped_routes: float | None
    changed_nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToggleResult:
    """One difference between the sides: `alone` in the reference, and `restored` alone in the candidate.

    A trial is None where an op refuses to run that mixture.

    `restored_change_low` and `_high` bound restored KL - candidate KL, 95 %, paired over sequences, nats per token.
    `restores_all`: restoring it alone gives the reference's bits at every node. `parent` is the toggle it is a part of,
    `set_by` are the flags and profiles that set it. `evidence` is the lowest level of the values it rests on there.
    """

    name: str
    kind: str
    reference: str
    candidate: str
    reference_origin: str
    candidate_origin: str
    flag: str | None
    parent: str | None
    nodes: int
    reference_set_by: str = ""
    candidate_set_by: str = ""
    reference_evidence: str
    candidate_evidence: str
    alone: TrialResult | None
    restored: TrialResult | None
    restored_change_low: float
    restored_change_high: float
    restores_all: bool
    had_no_effect: bool
    masked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """A block named by a selector, with all its differences as one toggle; None where nothing differs in it."""

    selector: str
    nodes: int
    toggle: ToggleResult | None
