"""What a trace shows of the candidate, and what each part makes of the divergence; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """What the program did between two places at which its residual stream was recorded.

    name: the segment of the graph; if no recorded value lies between several segments, the first and the last of them.
    kl: KL(trial || reference) in nats per scored token; the trial is the reference continued from what was recorded
        after this segment.
    made: `kl` minus that of the segment before, so that all add up to the candidate's KL. low, high: its 95 % interval,
        paired over sequences.
    roots: how many of its nodes give other bits than the reference on the recorded inputs.
    """

    name: str
    kl: float
    made: float
    low: float
    high: float
    roots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GraftedRoutes:
    """The reference with recorded routes. forced: how much of them (`ids`, `ids+weights`, `ids+weights+order`). kl: to
    the reference itself, in nats per scored token.
    """

    forced: str
    kl: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A recorded candidate.

    program: the program whose modules the map knows. forwards: its forward passes of the recipe's tokens, in words.
        others: how many further ones have other tokens, or the same again.
    tokens: of the `real_tokens` of the recipe, how many it shows. together: the reference computed the same tokens
        together.
    whole: the program ran to the end of the recording. logits: it shows the logits.
    shown, nodes: number of nodes whose values it shows, and of all nodes. unknown: those it does not show, as
        selectors.
    weights: for how many weights it has digests. other_weights: those that differ from the checkpoint's.
    """

    folder: str
    program: str
    forwards: str
    others: int
    tokens: int
    real_tokens: int
    together: bool
    whole: bool
    logits: bool
    shown: int
    nodes: int
    weights: int
    other_weights: tuple[str, ...]
    unknown: str
    segments: tuple[Segment, ...]
    routes: tuple[GraftedRoutes, ...]
    reading: tuple[str, ...]
