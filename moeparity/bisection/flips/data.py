"""The part of a report about routing flips; `docs/flips.md` defines each field under the same name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of routing flips, by every definition in use.

    set_differs: fraction of token-layers with another expert set (a flip).
    any_layer: fraction of tokens that flip in some layer. layers_per_token: mean number of layers in which a token
        flips.
    slot_overlap: mean fraction of a token's experts that both sides picked. zero_overlap: fraction of token-layers
        without a common expert.
    ordered_slots: fraction of token-layers with another expert in some slot.
    weight_drift, weight_drift_max: mean and largest |difference| of a common expert's weight; None without weights.
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
    """Numbers of flips by where they come from.

    root_gate, root_router: root flips (the gate's input has the reference's bits), whose row first differs after the
        gate, or after the router.
    after_own: inherited, and the same token flipped in an earlier layer. after_others: else, an earlier token of its
        sequence did. before_any: inherited, and no flip stands before it that could reach it: rounding alone.
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
    """Margins at the cut of the selection scores, against the perturbation there; both in ulps of the reference's
    `dtype`.

    ties, tie_flips: token-layers with an exact tie at either side's cut, and flips among them; they are in no bin.
    group_flips: flips whose sides kept other groups of experts; in no bin either.
    within_reach: token-layers in bins whose margin is at most twice their perturbation. Only these can flip.
    median_*: the bin that holds the median, as [low, high) in ulps; None without any.
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
    """One layer's flips by origin, its weight drift and its margins; None for what is not known."""

    layer: int
    origin: Origin | None
    weight_drift: float | None
    margins: Margins | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertPair:
    """In `flips` token-layers of `layer`, the candidate has expert `candidate` where the reference has `reference`."""

    layer: int
    reference: int
    candidate: int
    flips: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftAt:
    """How many tokens that flip in some layer have a row that first left the reference's bits at `node`.

    through_others: an earlier token of the sequence had left them before, and the node reads that token.
    """

    node: str
    op: str
    through_others: bool
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceFlips:
    """One toggle and the candidate's flips. alone: how many of them the reference has too with this one choice of the
    candidate. gone: how many are gone from the candidate with this choice restored. None if an op refuses the mixture.
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
    """What `tokens` scored tokens cost: means of KL(candidate || reference), k3 and |delta log p|, in nats per
    token.
    """

    tokens: int
    kl: Mean
    k3: Mean
    abs_delta: Mean


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipCost:
    """Scored tokens split by whether the position that predicts them flips in some layer; None for a class without
    tokens.

    kl_share: the fraction of the whole KL that flipped tokens have; None if the KL is 0.
    """

    flipped: CostOf | None
    unflipped: CostOf | None
    kl_share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipDetail:
    """Everything about the flips of one candidate.

    layers_per_token: how many tokens flip in 0, 1, 2, ... layers. origin, margins: None if only recorded routes were
    read.
    pairs: the most frequent of `distinct_pairs`. cost: None without log-probabilities.
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
    """Routing flips of one layer: how many tokens have another expert set, and how many other ordered slots."""

    layer: int
    tokens: int
    set_flips: int
    slot_flips: int
    slots_replaced: int
    zero_overlap: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingFlips:
    """Flips in all MoE layers; `tokens_any_layer` of the `tokens` have another expert set in at least one layer."""

    layers: tuple[LayerFlips, ...]
    tokens: int
    tokens_any_layer: int
    detail: FlipDetail | None = None
