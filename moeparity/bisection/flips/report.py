"""The part of a report about routing flips; every definition goes by the name that `docs/flips.md` gives it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Routing flips by every definition in use.

    set_differs: share of token-layers with another expert set (a flip).
    any_layer: share of tokens that flip in some layer. layers_per_token: mean number of layers a token flips in.
    slot_overlap: mean share of a token's experts that both sides picked. zero_overlap: share of token-layers with none.
    ordered_slots: share of token-layers with another expert in some slot.
    weight_drift, weight_drift_max: mean and greatest |difference| of a shared expert's weight; None without weights.
    """

    set_differs: float
    any_layer: float
    layers_per_token: float
    slot_overlap: float
    zero_overlap: float
    ordered_slots: float
    weight_drift: float | None
    weight_drift_max: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Flips by where they come from.

    root_gate, root_router: the gate's input has the reference's bits; the token's row first differs after the gate, or
        after the router.
    after_own, after_others: inherited, and the same token flipped in an earlier layer; else an earlier token of its
        sequence did. before_any: inherited, with no flip before it that could reach it: rounding alone.
    unknown: the gate lies inside a user's function.
    """

    root_gate: int
    root_router: int
    after_own: int
    after_others: int
    before_any: int
    unknown: int

    @property
    def roots(self) -> int:
        """All root flips."""
        return self.root_gate + self.root_router

    @property
    def total(self) -> int:
        """All flips."""
        return self.roots + self.after_own + self.after_others + self.before_any + self.unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class MarginBin:
    """Token-layers whose margin at the cut lies in [low, high) ulps, and the flips among them; `high` may be inf."""

    low: float
    high: float
    token_layers: int
    flips: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Margins:
    """Margins at the cut of the selection scores, in ulps of the reference's `dtype`, against the perturbation there.

    ties, tie_flips: token-layers with an exact tie at either side's cut, and flips among them; they are in no bin.
    group_flips: flips whose sides kept other groups of experts; in no bin either.
    within_reach: token-layers in bins whose margin is at most twice their perturbation, which a flip there needs.
    median_*: [low, high) in ulps, of the bin that the median lies in; None without any.
    """

    dtype: str
    bins: tuple[MarginBin, ...]
    ties: int
    tie_flips: int
    group_flips: int
    within_reach: int
    median_margin: tuple[float, float] | None
    median_margin_of_flips: tuple[float, float] | None
    median_perturbation: tuple[float, float] | None
    median_perturbation_of_flips: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDetail:
    """One layer's flips by origin, its weight drift and its margins; None where they are not known."""

    layer: int
    origin: Origin | None
    weight_drift: float | None
    margins: Margins | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertPair:
    """In `flips` token-layers of a layer the candidate has `candidate` in the place of `reference`."""

    layer: int
    reference: int
    candidate: int
    flips: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftAt:
    """Of the tokens that flip in some layer, those whose row first left the reference's bits at this node.

    `through_others`: an earlier token of the sequence had left them before, and the node reads it.
    """

    node: str
    op: str
    through_others: bool
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceFlips:
    """One toggle: of the candidate's flips, those the reference flips too with this choice `alone`, and those that are
    `gone` from the candidate with it restored; None where an op refuses the mixture.
    """

    name: str
    alone: int | None
    gone: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A mean in nats per token, with its 95 % interval over sequences."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CostOf:
    """What `tokens` scored tokens cost: KL(candidate || reference), k3 and |delta log p|, in nats per token."""

    tokens: int
    kl: Mean
    k3: Mean
    abs_delta: Mean


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipCost:
    """Scored tokens apart by whether the position that predicts them flips in some layer; None without such tokens.

    `kl_share`: the flipped ones' share of the whole KL; None where there is none.
    """

    flipped: CostOf | None
    unflipped: CostOf | None
    kl_share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipDetail:
    """Everything about the flips of one candidate.

    layers_per_token: tokens that flip in 0, 1, 2, ... layers.
    origin, margins: None where only recorded routes were read. `pairs` are the most frequent of `distinct_pairs`.
    cost: None without log-probabilities.
    """

    rates: Rates
    layers_per_token: tuple[int, ...]
    origin: Origin | None
    margins: Margins | None
    layers: tuple[LayerDetail, ...]
    pairs: tuple[ExpertPair, ...]
    distinct_pairs: int
    left_at: tuple[LeftAt, ...]
    choices: tuple[ChoiceFlips, ...]
    cost: FlipCost | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFlips:
    """Routing flips of one layer: tokens whose expert set differs, and whose ordered slots differ."""

    layer: int
    tokens: int
    set_flips: int
    slot_flips: int
    slots_replaced: int
    zero_overlap: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingFlips:
    """Flips over all MoE layers; `tokens_any_layer` of `tokens` have another expert set in at least one layer."""

    layers: tuple[LayerFlips, ...]
    tokens: int
    tokens_any_layer: int
    detail: FlipDetail | None = None
