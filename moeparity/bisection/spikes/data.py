"""Tokens that spike over repeated draws of sums in order of arrival; plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moeparity.metrics.verdict import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikingDraw:
    """One draw: the candidate's against the reference's; draw 0 is that of the recipe's seeds.

    mean: token_mult_prob_error, the mean of exp(|delta|) over the scored tokens, 1 at parity. highest_sequence: the
    greatest of the sequences' own means. highest: the greatest factor exp(|delta|) of a token. spikes: how many tokens
    have a factor above the recipe's `above`. carried: the part of `mean` - 1 that these tokens make; 0 if it is 0.
    """

    draw: int
    mean: float
    highest_sequence: float
    highest: float
    spikes: int
    carried: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikingToken:
    """A token that spikes in some draw.

    sequence, token: from 0, padding not counted. log_p: of the reference's draw 0, in nats. label: its class, ""
    without classes. draws: in how many it spikes. highest, median: of its factor, over all draws. causes: in how
    many draws which one. flips: in how many of all draws its own route differs in some layer. layer: where its
    route most often differs first in the draws in which it spikes; None if it does in none. margin: of the
    reference's router there, at the cut, in ulps of its scores; NaN if unknown. margin_rank: the fraction of the
    scored tokens with a smaller one there.
    """

    sequence: int
    token: int
    token_id: int
    log_p: float
    label: str
    draws: int
    highest: float
    median: float
    causes: Mapping[str, int]
    flips: int
    layer: int | None
    margin: float
    margin_rank: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What makes some spikes, as shown by trials, by its name in `CAUSES`; spikes: number of (draw, token) pairs."""

    name: str
    spikes: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """How often something holds of spikes, and of all scored tokens of all draws; of 1, NaN if there are none."""

    name: str
    of_spikes: float
    of_all: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Spikes:
    """What repeated draws of the sums in order of arrival do to single tokens.

    above: the factor from which on a token spikes. alarm: of token_mult_prob_error, as published. scored: number of
    tokens. median: of the draws' means. draws_above: the fraction of draws whose mean exceeds the alarm. rate: spikes
    per scored token, with an interval over draws. tokens: how many tokens spike in some draw. always: in every draw.
    spikes: number of (draw, token) pairs. causes: all of `CAUSES`, in this order. listed: the tokens with the highest
    factors.
    """

    above: float
    alarm: float
    scored: int
    draws: tuple[SpikingDraw, ...]
    median: float
    draws_above: float
    rate: Interval
    tokens: int
    always: int
    spikes: int
    causes: tuple[Cause, ...]
    shared: tuple[Shared, ...]
    listed: tuple[SpikingToken, ...]
    reading: tuple[str, ...]

    @property
    def measured(self) -> Mapping[str, float]:
        """What `expect: spikes` bounds, by the names of its keys."""
        return {
            "mean": max(draw.mean for draw in self.draws),
            "highest": max(draw.highest for draw in self.draws),
            "draws_above": self.draws_above,
            "tokens": self.tokens / self.scored,
            "always": self.always / self.tokens if self.tokens else 0.0,
            "routes": self.share(*ROUTES),
            "unlikely": self.share(UNLIKELY),
            "not_told": self.share(NOT_TOLD),
        }

    def share(self, *names: str) -> float:
        """The fraction of all spikes that have one of these causes; 0 without spikes."""
        spikes = sum(cause.spikes for cause in self.causes if cause.name in names)
        return spikes / self.spikes if self.spikes else 0.0


ONE_FLIP = "one flip"
OWN_ROUTES = "own routes"
EARLIER_ROUTES = "earlier routes"
UNLIKELY = "unlikely token"
NOT_TRIED = "not tried"
NOT_TOLD = "not told"
CAUSES: Mapping[str, str] = {
    ONE_FLIP: "gone with the reference's experts forced for this token, in the one layer where its route first differs",
    OWN_ROUTES: "gone with the reference's experts forced for this token, in every layer",
    EARLIER_ROUTES: "gone only with the reference's experts forced for all tokens",
    UNLIKELY: "not by routes; the likeliest token at this place does not spike in this draw",
    NOT_TRIED: "routes differ, and were not forced: only the highest spikes are tried",
    NOT_TOLD: "none of these trials ends it",
}
"""What each cause means. Gone: the factor falls to `above` or below it, and |delta| to half of what it was or less."""
ROUTES = (ONE_FLIP, OWN_ROUTES, EARLIER_ROUTES)
"""The causes by way of the routers."""
