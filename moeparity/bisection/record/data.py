"""Whether a side reproduces what an engine recorded of the tokens; plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from moeparity.metrics.verdict import Interval, Verdict
from moeparity.output.words import percent, quantity

Status = Literal["reproduced", "not reproduced", "no record"]
FAR = 3.0
"""A token is outside if its |delta| exceeds this multiple of the largest |delta| in any draw of the floor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLogprobs:
    """log P of one side minus the recorded one, over `tokens` scored tokens, in nats.

    k3: estimates KL(recorder || side) if the recorder sampled the tokens.
    """

    side: str
    tokens: int
    mean_abs_delta: float
    max_abs_delta: float
    k3: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRoutes:
    """Of `token_layers` with a recorded route, in how many one side picks the same set of experts."""

    side: str
    token_layers: int
    same_sets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The engine's records compared with what each side computes; a part is empty if nothing was recorded."""

    logprobs: tuple[RecordedLogprobs, ...]
    routes: tuple[RecordedRoutes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedToken:
    """One scored token: its sequence and position, both from 0; log-probabilities in nats."""

    sequence: int
    position: int
    recorded: float
    computed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobRecord:
    """The recorded log-probabilities of scored tokens against those of the side that stands for the engine, in nats.

    tokens, scored: scored tokens with a record, and all scored tokens. sequences: those with a recorded token.
    last_digit: how the record is rounded, in words. half_unit: half a unit of its last digit, mean over tokens.
    mean_abs_delta: NaN or infinite if the side's log-probabilities are.
    floor, floor_trial: mean |delta| of the side against itself in the draw that lies furthest, and that draw's name; 0
        and None without a draw. floor_largest: the largest |delta| of any draw.
    excess: mean |delta| minus that draw's and half a unit, paired over sequences.
    outside_tokens, outside_sequences: tokens whose |delta| is beyond what any draw does (`FAR`), and sequences
        with one.
    largest: the token with the largest |delta|.
    from_position, before: `before` tokens stand before `from_position` and are reproduced; with that position they no
        longer are. None and all tokens if the record is reproduced.
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
    """Of `token_layers` of one layer with a recorded route, in how many the side picks another set of experts.

    floor: the largest number that a draw of the side picks otherwise than the side itself.
    """

    layer: int
    token_layers: int
    other_sets: int
    floor: int
    reproduced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRecord:
    """The recorded routes against those of the side that stands for the engine.

    excess: fraction of token-layers with another set, minus that of the draw with most of them; paired over sequences.
    """

    layers: tuple[LayerRecord, ...]
    excess: Interval
    reproduced: bool

    @property
    def other_sets(self) -> float:
        """The fraction of token-layers for which the side picks another set of experts."""
        return sum(layer.other_sets for layer in self.layers) / sum(layer.token_layers for layer in self.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class LikelyCause:
    """What may be why a record is not reproduced: a finding of the diagnosis of logs, and what to do about it.

    meaning: whether the finding says that record and side mean different things by their numbers, rather than where the
    numbers differ.
    """

    name: str
    meaning: bool
    reason: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Whether `side`, which stands for the engine that sampled the tokens, reproduces what the engine recorded.

    gate: the verdict on k3(side against record), None if the recipe does not bound it. causes: named by the diagnosis
    of logs for log-probabilities that are not reproduced. rival: the other side, if that one lies at the record. pads:
    how many the side computes besides the tokens. reading: all of it in sentences.
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
        """The causes that say that record and side mean different things by their numbers."""
        return tuple(cause for cause in self.causes if cause.meaning)

    @property
    def contradicts(self) -> bool:
        """Whether the run can't speak of the engine: the record is not reproduced, and not within a gate on it."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRecord:
    """What the engine that did not sample recorded when it scored the tokens.

    record: whether its side reproduces it. tokens: how many have both records. mean_abs_delta, k3: of this record minus
    the sampler's, in nats: how far the engines themselves lie apart; k3 estimates KL(sampler || this one).
    """

    record: Record
    tokens: int
    mean_abs_delta: float
    k3: float


def of_both(record: Record, other_record: OtherRecord | None) -> tuple[Record, ...]:
    """The record of the side that sampled, and that of the other one if there is any."""
    return (record,) if other_record is None else (record, other_record.record)


def deciding(records: Sequence[Record]) -> Record:
    """The record on which a verdict rests: the first that its side contradicts, else that of the side that sampled."""
    return next((record for record in records if record.contradicts), records[0])


def overall(records: Sequence[Record]) -> Status:
    """Whether all records that there are are reproduced."""
    statuses = {record.status for record in records} - {"no record"}
    return "no record" if not statuses else "not reproduced" if "not reproduced" in statuses else "reproduced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Whether the record is reproduced, and how each side compares with it (None: nothing was recorded)."""

    record: Record
    recorded: Recorded | None
