"""The report as frozen plain data: what the terminal shows and what `--json` writes; and the list of its sections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, get_type_hints

from moeparity.bisection.arrival.report import Arrival
from moeparity.bisection.degeneracy.report import Degeneracy
from moeparity.bisection.determinism.report import NotDeterministic
from moeparity.bisection.distribution.report import Distribution
from moeparity.bisection.divergence.report import LayerGrowth, NodeError, Root
from moeparity.bisection.envelope.report import Envelope
from moeparity.bisection.flips.report import RoutingFlips
from moeparity.bisection.floor.report import Floor
from moeparity.bisection.nearest.report import Nearest
from moeparity.bisection.nonfinite.report import Nonfinite
from moeparity.bisection.oracle.report import Oracle
from moeparity.bisection.record.report import Record, Recorded
from moeparity.bisection.replay.report import Replay
from moeparity.bisection.schedule.report import Schedule
from moeparity.bisection.shares.report import Attribution
from moeparity.bisection.summary.report import Summary
from moeparity.bisection.toggles.report import Offset, Swap, ToggleResult
from moeparity.bisection.tokens.report import ClassMetrics
from moeparity.bisection.verdict.report import Metrics
from moeparity.metrics.verdict import Verdict
from moeparity.output.json import to_json

SCHEMA = "moeparity.report/2"
"""Grows when a field changes its meaning or goes; new fields may appear without it."""


@dataclass(frozen=True, slots=True)
class Section:
    """What makes a part of the report: the folder `moeparity/bisection/<name>`.

    Parts stand in the JSON in the order of the class, on the screen in that of `screen` (None: they are not there).
    """

    name: str
    screen: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One side as it ran; `placement` as in `tensor 4, expert 2`, empty on one rank."""

    profile: str
    dtype: str
    micro_batch: int
    placement: str = ""

    def __str__(self) -> str:
        """`hf-default, bf16, micro-batch 8`, and its placement."""
        suffix = f", {self.placement}" if self.placement else ""
        return f"{self.profile}, {self.dtype}, micro-batch {self.micro_batch}{suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What was run, on what, and what it cost. Evaluations are kernel calls; `naive` is without sharing."""

    recipe: str
    checkpoint: str
    model_type: str
    sequences: int
    tokens_per_sequence: int
    scored_tokens: int
    sampled_from: str
    device: str
    cpu: str
    torch: str
    threads: int
    variants: int
    evaluations: int
    naive_evaluations: int
    weight_bytes_read: int
    seconds: float
    memory_estimated: int
    memory_peak: int | None
    pads: int = 0
    sampling: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything one bisection found. This is the list of its sections: a line for every part, with its folder."""

    run: Run
    reference: Variant
    candidate: Variant
    record: Annotated[Record, Section("record", screen=5)]
    degeneracy: Annotated[Degeneracy, Section("degeneracy", screen=15)]
    verdict: Annotated[Verdict, Section("verdict", screen=20)]
    metrics: Annotated[Metrics, Section("verdict")]
    roots: Annotated[tuple[Root, ...], Section("divergence", screen=30)]
    growth: Annotated[tuple[LayerGrowth, ...], Section("divergence", screen=40)]
    flips: Annotated[RoutingFlips | None, Section("flips", screen=50)]
    toggles: Annotated[tuple[ToggleResult, ...], Section("toggles", screen=110)]
    swaps: Annotated[tuple[Swap, ...], Section("toggles", screen=140)]
    reading: Annotated[tuple[str, ...], Section("toggles", screen=150)]
    nodes: Annotated[tuple[NodeError, ...], Section("divergence")]
    warnings: Annotated[tuple[str, ...], Section("tokens", screen=10)] = ()
    distribution: Annotated[Distribution | None, Section("distribution")] = None
    recorded: Annotated[Recorded | None, Section("record", screen=160)] = None
    classes: Annotated[tuple[ClassMetrics, ...], Section("tokens", screen=170)] = ()
    floor: Annotated[Floor | None, Section("floor", screen=90)] = None
    oracle: Annotated[Oracle | None, Section("oracle", screen=100)] = None
    arrival: Annotated[Arrival | None, Section("arrival", screen=80)] = None
    replay: Annotated[Replay | None, Section("replay", screen=60)] = None
    envelope: Annotated[Envelope | None, Section("envelope", screen=70)] = None
    attribution: Annotated[Attribution | None, Section("shares", screen=130)] = None
    not_deterministic: Annotated[tuple[NotDeterministic, ...], Section("determinism", screen=15)] = ()
    nearest: Annotated[tuple[Nearest, ...], Section("nearest", screen=120)] = ()
    offsets: Annotated[tuple[Offset, ...], Section("toggles")] = ()
    nonfinite: Annotated[Nonfinite | None, Section("nonfinite", screen=25)] = None
    schedule: Annotated[Schedule | None, Section("schedule", screen=95)] = None
    summary: Annotated[Summary, Section("summary", screen=1)]

    @property
    def exit_code(self) -> int:
        """0 parity, 1 divergence, 3 inconclusive."""
        return self.verdict.exit_code

    def to_json(self) -> str:
        """The report as JSON: strict, so that a number that is not finite is written as the word nan, inf or -inf."""
        return to_json(SCHEMA, self)


PARTS: dict[str, Section] = {
    name: note
    for name, hint in get_type_hints(Report, include_extras=True).items()
    for note in getattr(hint, "__metadata__", ())
}
"""All parts by field, in the order of the JSON."""
