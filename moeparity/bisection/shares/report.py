"""What a report says of blame: the divergence shared out, and the smallest sets of toggles to restore."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRow:
    """One toggle's share of the full-vocabulary KL, or that of a part of it; nats per scored token unless said.

    depth: 0 for a toggle, 1 for a part of it, and so on.
    of_whole: the share over the whole KL; the rows of depth 0 add up to 1.
    of_whole_low, of_whole_high: 95 % interval of that part, in which the whole KL varies over sequences as well;
        infinite where the sequences do not bound it.
    standard_error: of the share, from drawing orders; 0 where all were taken.
    low, high: 95 % interval of the share over sequences, in nats.
    k3: its share of k3; None where a k3 is not finite.
    alone, restored: KL of the reference with this of the candidate, and of the candidate with this of the reference;
        None where an op refuses it.
    change_low, change_high: 95 % interval of restored less candidate, paired over sequences.
    evidence: how sure the values are that it rests on, by side where they differ: `verified | read`.
    needed: how many sequences like those given would decide what is open of it; None where nothing is, or where these
        do not say.
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
    """A KL shared out without a residual; `total` is None, and there are no rows, where an op refuses the mixtures.

    exact: all orders of restoring were taken; `left_out` were not, since an op refuses a mixture on their way.
    """

    total: float | None
    exact: bool
    orders: int
    left_out: int
    rows: tuple[ShareRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApartRow:
    """Toggles that are no legal choices, but another function, restored together; KL in nats per scored token.

    without: the candidate's KL with them restored; `change_low` and `_high` bound that less the candidate's, 95 %,
    paired over sequences. `forced`, `forced_without`, `forced_change_low` and `_high` are the same with every router
    forced to the reference's expert ids, None and infinite where that was not run. None also where an op refuses it.
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
    """What two toggles cost together beyond what each costs, in nats per token, with 95 % intervals over sequences.

    `in_reference` with all others as the reference has them, `in_candidate` as the candidate has them; None where an op
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
    """Toggles that, restored together, pass the gate; run, not inferred.

    evidence: of each toggle, how sure the values are that it rests on.
    kl: nats per token with them restored; `upper` the bound of the gate's metric that lies under the gate.
    exact: the reference's bits at every node.
    minimal: every smaller set within it was run and is no fix.
    spoiled_by: further toggles that, restored as well, were seen to bring it over the gate again.
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
    """The most toggles that may stay as the candidate has them, or those whose others are cheapest to restore.

    evidence: of each of `toggles`, how sure the values are that it rests on.
    cost: of restoring the others; their number where the recipe gives no costs.
    certain: nothing that costs less passes.
    """

    toggles: tuple[str, ...]
    evidence: tuple[str, ...]
    restored: tuple[str, ...]
    cost: float
    certain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Who is to blame, by how much, and the smallest fix.

    forced: the shares with every router forced to the reference's expert ids; None where no expert set differs.
    apart: toggles that are no legal choices, judged apart from those that are; None without any, or without others.
    inside: toggles taken apart where their share is, from drawn orders; None where nothing is worth it.
    fixes: the smallest first; the empty set where the candidate passes as it is.
    complete: `fixes` are all minimal ones; else all of up to `exhaustive` toggles.
    kept: None without a fix.
    in_fp32: KL with both sides computed in fp32, nats per token; looked at only where toggles are saturated.
    mixtures: run beyond the bisection's own passes; one by one it would be a pass a mixture.
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
