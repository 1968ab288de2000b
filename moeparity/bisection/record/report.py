"""Whether a side reproduces what an engine recorded of the tokens; plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from moeparity.metrics.verdict import Interval, Verdict
from moeparity.output.words import percent, quantity

Status = Literal["reproduced", "not reproduced", "no record"]


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
class RecordedToken:
    """One scored token: `position` counts from the first token of its sequence, both from 0; nats."""

    sequence: int
    position: int
    recorded: float
    computed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobRecord:
    """The recorded log-probabilities of scored tokens against those of the side that they are the record of, in nats.

    tokens, scored: scored tokens with a record, and all of them; sequences: those with such a token.
    last_digit: how the record is rounded, in words; half_unit: half a unit of its last digit, a mean over tokens.
    mean_abs_delta: NaN or infinite where the side's are.
    floor, floor_largest, floor_trial: mean |delta| of the side against itself in the draw that lies furthest, the
        largest |delta| of any draw, and the name of the former; 0 and None without a draw.
    excess: mean |delta| over that draw's and half a unit, paired over sequences.
    outside: tokens, and sequences with one, whose |delta| is beyond what any draw does (`compare.FAR`).
    largest: the token with the greatest |delta|.
    from_position, before: the tokens before this position, so many, are reproduced, and with it they no longer are;
        None and all tokens where the record is reproduced.
    """

    tokens: int
    scored: int
    sequences: int
    last_digit: str
    half_unit: float
    mean_abs_delta: float
    floor: float
    floor_largest: float
    floor_trial: str | None
    excess: Interval
    outside_tokens: int
    outside_sequences: int
    largest: RecordedToken
    from_position: int | None
    before: int
    reproduced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRecord:
    """Of `token_layers` with a recorded route in one layer, those where the side picks another set of experts.

    `floor`: the most that a draw of the side picks otherwise than the side itself.
    """

    layer: int
    token_layers: int
    other_sets: int
    floor: int
    reproduced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRecord:
    """The recorded routes against those of the side that they are the record of.

    excess: the share of token-layers with another set, over that of the draw with most of them; paired over sequences.
    """

    layers: tuple[LayerRecord, ...]
    excess: Interval
    reproduced: bool

    @property
    def other_sets(self) -> float:
        """The share of token-layers for which the side picks another set of experts."""
        return sum(layer.other_sets for layer in self.layers) / sum(layer.token_layers for layer in self.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class LikelyCause:
    """What a record that is not reproduced looks like: a finding of the diagnosis of logs, and what to do about it.

    meaning: whether it says that the two columns mean different things, rather than where they differ.
    """

    name: str
    meaning: bool
    reason: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Whether `side`, the one that sampled the tokens, gives again what an engine recorded of them.

    `gate` is the verdict on k3(side against record) where the recipe bounds it; None where it does not. `causes` are
    those that the diagnosis of logs names of log-probabilities that are not reproduced; `rival` is the other side where
    that one lies at the record; `pads` are those that the side computes beside the tokens. `reading` says all of it in
    sentences.
    """

    status: Status
    side: str
    logprobs: LogprobRecord | None
    routes: RouteRecord | None
    gate: Verdict | None
    causes: tuple[LikelyCause, ...] = ()
    rival: RecordedLogprobs | None = None
    pads: int = 0
    reading: tuple[str, ...] = ()

    @property
    def meanings(self) -> tuple[LikelyCause, ...]:
        """The causes by which the two columns mean different things."""
        return tuple(cause for cause in self.causes if cause.meaning)

    @property
    def contradicts(self) -> bool:
        """Whether the record keeps the run from speaking of the engine: not reproduced, nor within a bound of it."""
        return self.status == "not reproduced" and (self.gate is None or self.gate.status != "pass")

    def __str__(self) -> str:
        """The verdict with its figures: `not reproduced: mean |delta| 1.18 nats over 2016 scored tokens`."""
        figures = []
        if self.logprobs is not None:
            tokens = quantity(self.logprobs.tokens, "scored token")
            figures.append(f"mean |delta| {self.logprobs.mean_abs_delta:.3g} nats over {tokens}")
        if self.routes is not None:
            figures.append(f"{percent(self.routes.other_sets)} of routes to other experts")
        return ": ".join(filter(None, (self.status, ", ".join(figures))))
