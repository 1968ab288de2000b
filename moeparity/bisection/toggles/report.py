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
    Of its `nodes`, its value takes no effect in the reference itself at `reference_resting`, in the candidate at
    `candidate_resting`: another choice leaves it nothing to decide there, and it may wake in a mixture.
    `large`: alone it costs, and restored it leaves, surely `roles.LEAST_SATURATION` of the KL. `legal`: an engine may
    take either value without computing another model.
    `restores_all`: restoring it alone gives the reference's bits at every node. `parent` is the toggle it is a part of,
    `set_by` is what makes each engine run its value (a flag, or `default`) and the profile that says so, `changed_by`
    what a user of that engine would do to change it. `evidence` is the lowest level of the values it rests on there.
    """

    name: str
    kind: str
    reference: str
    candidate: str
    reference_origin: str
    candidate_origin: str
    parent: str | None
    nodes: int
    reference_set_by: str = ""
    candidate_set_by: str = ""
    reference_evidence: str
    candidate_evidence: str
    reference_changed_by: str = ""
    candidate_changed_by: str = ""
    reference_resting: int = 0
    candidate_resting: int = 0
    alone: TrialResult | None
    restored: TrialResult | None
    restored_change_low: float
    restored_change_high: float
    restores_all: bool
    large: bool
    legal: bool
    had_no_effect: bool
    masked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """Two toggles that offset each other, the nodes of each, and the KL of each alone in the reference and of both
    together there, in nats per token.
    """

    first: str
    second: str
    first_nodes: str
    second_nodes: str
    first_alone: float
    second_alone: float
    together: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """A block named by a selector, with all its differences as one toggle; None where nothing differs in it."""

    selector: str
    nodes: int
    toggle: ToggleResult | None
