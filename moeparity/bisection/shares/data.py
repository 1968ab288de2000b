"""The divergence divided into shares, and the smallest sets of toggles to restore; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRow:
    """The share of one toggle, or of a part of one, in the full-vocabulary KL; nats per scored token unless said
    otherwise.

    depth: 0 for a toggle, 1 for a part of it, and so on.
    of_whole: the share over the whole KL; the rows of depth 0 add up to 1.
    of_whole_low, of_whole_high: its 95 % interval, in which the whole KL varies over sequences as well; infinite if the
        sequences do not bound it.
    standard_error: of the share, from drawing orders; 0 if all orders were taken.
    low, high: 95 % interval of the share over sequences.
    k3: the share in k3; None if some k3 is not finite.
    alone, restored: KL of the two trials; None if an op refuses the trial.
    change_low, change_high: 95 % interval of the restored trial's KL minus the candidate's, paired over sequences.
    evidence: the lowest level of the values in play, by side if they differ: `verified | read`.
    needed: how many sequences like these would decide its role; None if it is decided, or if these do not tell.
    role: `culprit`, `contributes`, `saturated`, `masked`, `helps`, `negligible`, `offsets`, `had no effect`,
        `undecided` or `refused`.
    """

    name: str
    evidence: str
    depth: int
    share: float
    of_whole: float
    of_whole_low: float
    of_whole_high: float
    standard_error: float
    low: float
    high: float
    k3: float | None
    alone: float | None
    restored: float | None
    change_low: float
    change_high: float
    needed: int | None
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """A KL divided into shares without a remainder. If an op refuses the mixtures, `total` is None and there are no
    rows.

    exact: all orders of restoring were taken. left_out: orders that were not, since an op refuses a mixture on their
    way.
    """

    total: float | None
    exact: bool
    orders: int
    left_out: int
    rows: tuple[ShareRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApartRow:
    """Toggles that are not legal choices, restored together; KL in nats per scored token.

    without: the candidate's KL with them restored. change_low, change_high: 95 % interval of that minus the candidate's
    KL, paired over sequences. forced, forced_without, forced_change_low, forced_change_high: the candidate's KL and the
    same figures with every router forced to the reference's expert ids; None and infinite if that was not run. None
    also if an op refuses the mixture.
    """

    toggles: tuple[str, ...]
    without: float | None
    change_low: float
    change_high: float
    forced: float | None
    forced_without: float | None
    forced_change_low: float
    forced_change_high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class InteractionRow:
    """What two toggles cost together beyond what each costs by itself, in nats per token, with 95 % intervals.

    in_reference: with all other toggles at the reference's values; in_candidate: at the candidate's. None if an op
    refuses a mixture.
    """

    first: str
    second: str
    in_reference: float | None
    in_reference_low: float
    in_reference_high: float
    in_candidate: float | None
    in_candidate_low: float
    in_candidate_high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FixSetRow:
    """A fix: toggles that, restored together, bring the candidate under the gate. It was run, not inferred.

    evidence: by toggle, the lowest level of its values.
    kl: nats per token with them restored. upper: the upper bound of the gate's metric, which lies under the gate.
    exact: the reference's bits at every node.
    minimal: every smaller set within it was run and is not a fix.
    spoiled_by: toggles that, if restored as well, bring it over the gate again.
    """

    toggles: tuple[str, ...]
    evidence: tuple[str, ...]
    kl: float
    upper: float
    exact: bool
    minimal: bool
    spoiled_by: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRow:
    """The toggles that may stay as the candidate has them: the most, or if the recipe has costs, those that leave the
    least cost of restoring the others (`restored`).

    evidence: by toggle, the lowest level of its values. cost: of restoring the others; their number if the recipe has
    no costs. certain: nothing that costs less passes.
    """

    toggles: tuple[str, ...]
    evidence: tuple[str, ...]
    restored: tuple[str, ...]
    cost: float
    certain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredRow:
    """Places left as the reference rounds them, together. It was run, not inferred.

    kl: nats per token that is left. upper: the upper bound of the gate's metric. gone: the part of the candidate's KL
    that is gone; gone_low, gone_high: its 95 % interval. exact: the reference's bits at every node. best: every set of
    as many places was run, and none leaves less.
    """

    places: tuple[str, ...]
    kl: float
    upper: float
    gone: float
    gone_low: float
    gone_high: float
    exact: bool
    best: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacesRow:
    """What leaving some places as the reference rounds them does, with all other differences as in the candidate.

    by: what a place is, `op` (a kind of op) or `layer`. unquantised: restoring takes numbers off a grid of 8 or 4 bits.
    shares: of what all places make together. sets: of each number of places, the one that leaves least of those run.
    fixes: the smallest that bring the candidate under the gate; complete, exhaustive: as of `Attribution`.
    """

    by: str
    unquantised: bool
    shares: Shares
    sets: tuple[RestoredRow, ...]
    fixes: tuple[FixSetRow, ...]
    complete: bool
    exhaustive: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Which toggles are to blame, by how much, and the smallest fixes.

    forced: the shares with every router forced to the reference's expert ids; None if no expert set differs.
    apart: toggles that are not legal choices, judged by themselves; None if there are none, or nothing else.
    inside: toggles taken apart where their share is, from drawn orders; None if none is large enough.
    fixes: the smallest first; the empty set if the candidate passes as it is.
    complete: `fixes` are all minimal ones; if False, all those of up to `exhaustive` toggles.
    kept: None without a fix.
    places: by kinds of ops and by layers, where roundings to a grid, or beside one, differ in several.
    in_fp32: KL with both sides computed in fp32, nats per token; only looked at if toggles are saturated.
    mixtures: how many were run beyond the bisection's own passes.
    """

    shares: Shares
    forced: Shares | None
    apart: ApartRow | None
    inside: Shares | None
    interactions: tuple[InteractionRow, ...]
    fixes: tuple[FixSetRow, ...]
    complete: bool
    exhaustive: int
    refused: int
    kept: KeptRow | None
    in_fp32: float | None
    mixtures: int
    places: tuple[PlacesRow, ...] = ()
