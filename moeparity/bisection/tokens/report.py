"""The part of a report about recorded data and classes of tokens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLogprobs:
    """One side's log P minus the recorded one on `tokens` scored tokens, in nats.

    `k3` estimates KL(recorder || side) where the recorder sampled the tokens.
    """

    side: str
    tokens: int
    mean_abs_delta: float
    max_abs_delta: float
    k3: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRoutes:
    """Of `token_layers` with a recorded route, those where one side picks the same set of experts."""

    side: str
    token_layers: int
    same_sets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What an engine recorded of these tokens beside what each side computes; a part is empty where none was."""

    logprobs: tuple[RecordedLogprobs, ...]
    routes: tuple[RecordedRoutes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassMetrics:
    """Candidate against reference on the tokens of one class: k3 and mean |delta| in nats per scored token, NaN where
    none is scored; of `token_layers` those whose expert set differs.
    """

    name: str
    scored_tokens: int
    k3: float
    mean_abs_delta: float
    token_layers: int
    set_flips: int
