"""What a recipe may expect of its own report, for `moeparity check`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from moeparity.documents.model import Model

Number = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


class Expecting(Model):
    """Base: a key that is given must expect something, or any report meets it. `may_be_empty`: no key need be given."""

    model_config = ConfigDict(use_attribute_docstrings=True, json_schema_extra={"minProperties": 1})
    may_be_empty: ClassVar[bool] = False

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        for key in self.model_fields_set:
            if getattr(self, key) in (None, "", []):
                raise ValueError(f"{key!r} is empty, which any report would meet; give it a value or drop it")
        if not self.model_fields_set and not self.may_be_empty:
            keys = ", ".join(type(self).model_fields)
            raise ValueError(f"nothing is given, which any report would meet; expected one or more of {keys}")
        return self


class Bounds(Expecting):
    """The open range a number must lie in. NaN lies in none."""

    below: Number | None = None
    """The number must be less than this."""
    above: Number | None = None
    """The number must be greater than this."""

    @model_validator(mode="after")
    def _leaves_room(self) -> Self:
        if self.below is not None and self.above is not None and self.above >= self.below:
            raise ValueError(f"no number lies above {self.above:g} and below {self.below:g}")
        return self

    def __str__(self) -> str:
        """`above 0.1 and below 0.5`."""
        parts = {"above": self.above, "below": self.below}
        return " and ".join(f"{word} {value:g}" for word, value in parts.items() if value is not None)


class ShareBounds(Bounds):
    """The open range a share must lie in, of 0 to 1: 5 % is 0.05."""

    below: Share | None = None
    """The share must be less than this."""
    above: Share | None = None
    """The share must be greater than this."""


class MetricBounds(Expecting):
    """Bounds on the estimates, means over all scored tokens; k1 to max_abs_delta in nats."""

    k1: Bounds | None = None
    """-delta, where delta = log(scorer / sampler)."""
    k2: Bounds | None = None
    """delta^2 / 2."""
    k3: Bounds | None = None
    """exp(delta) - 1 - delta. `interval` bounds the whole interval instead of the estimate."""
    kl: Bounds | None = None
    """Full-vocabulary KL(candidate || reference)."""
    kl_reverse: Bounds | None = None
    """Full-vocabulary KL(reference || candidate)."""
    mean_abs_delta: Bounds | None = None
    """Mean of |delta|."""
    max_abs_delta: Bounds | None = None
    """Largest |delta| of any scored token."""
    top1_agreement: ShareBounds | None = None
    """Share of scored tokens at which both sides have their greatest logit at the same id."""
    nonfinite_tokens: Bounds | None = None
    """How many scored tokens have NaN or infinite logits."""
    unequal_tokens: Bounds | None = None
    """How many scored tokens differ in any bit of what they are scored by."""
    outside_tokens: Bounds | None = None
    """How many scored tokens a side leaves out of what it samples from."""
    unshared_tokens: Bounds | None = None
    """At how many scored tokens the candidate keeps tokens that the reference leaves out."""


class DistributionBounds(Expecting):
    """Bounds on how the whole distributions over the vocabulary differ; means over scored tokens, but for `max_tv`."""

    jsd: Bounds | None = None
    """Jensen-Shannon divergence, in nats."""
    tv: ShareBounds | None = None
    """Total variation, of 1."""
    max_tv: ShareBounds | None = None
    """Greatest total variation of any scored token, of 1."""
    top10_jaccard: ShareBounds | None = None
    """Overlap of the ten likeliest ids of both sides, of 1."""
    rank_change: Bounds | None = None
    """By how many places the chosen token stands elsewhere among all ids."""


class UpdateBounds(Expecting):
    """Bounds on what weights that change under running sequences make: the mean size of each part over scored tokens,
    in nats, and how many tokens have stale keys. A recipe without updates meets none.
    """

    old_cache: Bounds | None = None
    """Keys and values of older weights."""
    old_weights: Bounds | None = None
    """Weights of tokens that were sampled before an update."""
    semantics: Bounds | None = None
    """Choices that change which function is computed, such as a temperature on one side alone."""
    numerics: Bounds | None = None
    """Rounding, orders and forms, and what is computed together."""
    stale_keys: Bounds | None = None
    """How many scored tokens are computed from keys that are older than their weights."""


class ClassBounds(Expecting):
    """Bounds on the estimates of one class of tokens."""

    k3: Bounds | None = None
    """exp(delta) - 1 - delta, a mean over its scored tokens, in nats."""
    mean_abs_delta: Bounds | None = None
    """Mean of |delta| over its scored tokens, in nats."""
    flips: ShareBounds | None = None
    """Share of its (token, MoE layer) pairs with a flip."""


class FlipBounds(Expecting):
    """Bounds on routing flips: another set of experts than the reference chose."""

    tokens: ShareBounds | None = None
    """Share of tokens with a flip in one MoE layer or more."""
    token_layers: ShareBounds | None = None
    """Share of (token, MoE layer) pairs with a flip."""


class SpikeBounds(Expecting):
    """Bounds on what repeated draws of sums in order of arrival do to single tokens; for `spikes`."""

    mean: Bounds | None = None
    """The greatest token_mult_prob_error of a draw: the mean of exp(|delta|), 1 at parity."""
    highest: Bounds | None = None
    """The greatest factor exp(|delta|) of any token in any draw."""
    draws_above: ShareBounds | None = None
    """Share of draws in which token_mult_prob_error exceeds its published alarm."""
    tokens: ShareBounds | None = None
    """Share of scored tokens that spike in some draw."""
    always: ShareBounds | None = None
    """Share of the tokens that spike in some draw which spike in every draw."""
    routes: ShareBounds | None = None
    """Share of spikes that are gone with the reference's experts forced."""
    unlikely: ShareBounds | None = None
    """Share of spikes that no route makes, and of which the likeliest token at the same place has none."""
    not_told: ShareBounds | None = None
    """Share of spikes of which no trial told the cause."""


class GrowthBounds(Expecting):
    """Bounds on steps of the growth over layers: the error after a layer over that after the layer before (rel. L2).

    They bound the largest such factor; no step there is to bound meets no bound.
    """

    step: Bounds | None = None
    """Over all layers."""
    step_with_flips: Bounds | None = None
    """Over the layers in which a token flips."""
    step_without_flips: Bounds | None = None
    """Over the MoE layers in which no token flips."""


class Expect(Expecting):
    """What `moeparity check` holds a report to. All of it must be met; what is not named is not looked at.

    A recipe without `expect`, or with an empty one, expects its gate to be passed: `verdict: pass`.
    """

    model_config = ConfigDict(json_schema_extra={})
    may_be_empty: ClassVar[bool] = True

    verdict: Literal["pass", "fail", "inconclusive"] | None = None
    """The gate's verdict. Where `pass` or `fail` is expected, an inconclusive verdict leaves the expectation open."""
    record: Literal["reproduced", "not reproduced", "no record"] | None = None
    """Whether the side that sampled the tokens reproduces what was recorded of them. While a record contradicts it,
    nothing else is met but open, unless `not reproduced` is what is expected: the report speaks of two simulations."""
    metrics: MetricBounds | None = None
    """Bounds on the estimates."""
    distribution: DistributionBounds | None = None
    """Bounds on how the whole distributions differ."""
    classes: Annotated[dict[str, ClassBounds], Field(min_length=1)] | None = None
    """Bounds on classes of tokens, by the names in the token file: `text` and `image` where it holds images."""
    interval: Bounds | None = None
    """Bounds that the gate's whole interval must keep (95 %, over sequences, under the gate's `reduce`).

    Met when the interval lies inside, not met when it lies beyond a bound, open when it holds one. An interval from
    fewer sequences than a verdict takes (25) never meets a bound, unless all bits are equal.
    """
    updates: UpdateBounds | None = None
    """Bounds on the parts of a divergence across updates of the weights."""
    flips: FlipBounds | None = None
    """Bounds on routing flips. A model without routers is refused."""
    spikes: SpikeBounds | None = None
    """Bounds on the tokens that spike from draw to draw; for `spikes`."""
    growth: GrowthBounds | None = None
    """Bounds on how the error grows from layer to layer. Those on flips are refused for a model without routers."""
    first_divergence: str | None = None
    """A node, or a selector for several, one of which is the first whose inputs agree and whose output does not;
    `none`: every node has equal bits on both sides."""
    culprits: Literal["none"] | list[str] | None = None
    """Toggles that must act, by their names in the report: alone in the reference, or restored in the candidate, each
    changes a bit at some node. More may act. `none`: no toggle does."""
    no_effect: list[str] | None = None
    """Toggles that must not act: neither alone nor restored do they change a bit at any node."""
    restores: list[str] | None = None
    """Selectors of `swap:` that must bring back the reference's bits at every node, and so a k3 of 0 in every class."""
    shares: Annotated[dict[str, Bounds], Field(min_length=1)] | None = None
    """Bounds on the shares of toggles in the KL, of 1; for `attribute: true`. Met when the interval of the share lies
    inside, not met when it lies beyond a bound, open when it holds one."""
    replay: Annotated[dict[str, Bounds], Field(min_length=1)] | None = None
    """Bounds on the KL that a replay of routes leaves, over that without one (1: as much); for `replay: true`. By the
    ladder's rungs (`ids`, `ids+weights`, `ids+weights+order`, `logits`, `keys`, `ids+keys`), and by the names of the
    mistakes in the report (`1 token before`)."""
    saturated: list[str] | None = None
    """Toggles that must be found interchangeable; for `attribute: true`."""
    smallest_fix: list[str] | None = None
    """Toggles that must be one of the smallest sets whose restoring passes the gate; for `attribute: true`."""

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        contradictions = set(self.no_effect or ()) & set(self.culprits if isinstance(self.culprits, list) else ())
        if contradictions:
            raise ValueError(f"{min(contradictions)!r} stands under both `culprits` and `no_effect`")
        return self


class StepBound(Model):
    """A bound that every step of a log must keep, and how many steps there must be."""

    metric: Literal["k3", "mean_abs_delta"] = "k3"
    below: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    count: Annotated[int, Field(ge=2)]


class LogExpect(Expecting):
    """What `moeparity check` holds a log to. All of it must be met; what is not named is not looked at.

    A log without `expect`, or with an empty one, expects its gate to be passed: `verdict: pass`.
    """

    model_config = ConfigDict(json_schema_extra={})
    may_be_empty: ClassVar[bool] = True

    verdict: Literal["pass", "fail", "inconclusive"] | None = None
    """The gate's verdict. Where `pass` or `fail` is expected, an inconclusive verdict leaves the expectation open."""
    metrics: Annotated[dict[str, Bounds], Field(min_length=1)] | None = None
    """Bounds on the estimates, by the names of docs/metrics.md: `k3`, or `verl/k3_kl` for a framework's own."""
    interval: Bounds | None = None
    """Bounds that the gate's whole interval must keep, as for a recipe."""
    causes: Literal["none"] | list[str] | None = None
    """Causes that the diagnosis must name, by their names in the report; it may name more. `none`: it names none."""
    steps: StepBound | None = None
    """The common gate of pull requests: a bound on every step of a short run at learning rate 0. Open with fewer steps
    than `count`.
    """
    noise: str | None = None
    """A file that `moeparity doctor --json` wrote, relative to this one: no statistic of its noise may lie beyond the
    bound there, below which a run without a mistake lies at its level.
    """
