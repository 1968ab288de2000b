"""What a trace showed of the candidate, and what each part of it makes of the divergence; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """What the program did between two places at which its stream of hidden states was recorded.

    name: the segment of the graph, or the first and the last of several that no recorded value parts.
    kl: KL(trial || reference) in nats per scored token, the trial being the reference that goes on from what was
        recorded behind this segment; `made` is that less the same of the segment before, so that all of them add up
        to the candidate's KL, and `low`, `high` its 95 % interval, paired over sequences.
    roots: nodes of it that give other bits than the reference on the recorded inputs.
    """

    name: str
    kl: float
    made: float
    low: float
    high: float
    roots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GraftedRoutes:
    """The reference with recorded routes: how much of them (`ids`, `ids+weights`, `ids+weights+order`), and its KL to
    the reference itself, in nats per scored token.
    """

    forced: str
    kl: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A recorded candidate.

    program: whose modules the map knows. forwards: the program's ways through the model, in words; others: how many
    further ones are of other tokens, or of the same again. tokens: real tokens of the recipe that it shows, of
    `real_tokens`. together: whether the reference computed the same tokens together. whole: whether its program got to
    the end of the recording. logits: whether it shows these. shown, nodes: nodes whose values it shows, and all;
    unknown: those that it does not, as selectors. weights: how many of these it has the digests of; other_weights:
    those that are not the checkpoint's.
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
