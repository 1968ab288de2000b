"""The report as frozen plain data: what the terminal shows and what `--json` writes."""

from __future__ import annotations

from dataclasses import dataclass

from moeparity.bisection.envelope.report import Envelope
from moeparity.bisection.flips.report import FlipDetail
from moeparity.bisection.floor.report import Arrival, Floor, Oracle
from moeparity.bisection.nearest.report import Nearest
from moeparity.bisection.replay.report import Replay
from moeparity.bisection.shares.report import Attribution
from moeparity.bisection.tokens.report import ClassMetrics, Recorded
from moeparity.metrics.verdict import Verdict
from moeparity.output.json import to_json

SCHEMA = "moeparity.report/1"
"""Grows when a field changes its meaning or goes; new fields may appear without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Candidate against reference over all scored tokens; k1, k2, k3, KL and |delta| in nats per token.

    `kl` is the full-vocabulary KL(candidate || reference), `kl_reverse` KL(reference || candidate).
    """

    k1: float
    k2: float
    k3: float
    kl: float
    kl_reverse: float
    mean_abs_delta: float
    max_abs_delta: float
    top1_agreement: float
    nonfinite_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """The whole distributions over the vocabulary, over scored tokens with finite logits; means unless said otherwise.

    `jsd` is the Jensen-Shannon divergence in nats, `tv` the total variation; `max_tv` its greatest; `top10_jaccard` the
    overlap of the ten likeliest ids of both sides; `rank_change` by how many places the chosen token stands elsewhere.
    """

    jsd: float
    tv: float
    max_tv: float
    top10_jaccard: float
    rank_change: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One attribute on which the two sides differ, where each side's value was set, and by which flag and profile."""

    attribute: str
    reference: str
    candidate: str
    reference_origin: str
    candidate_origin: str
    reference_set_by: str = ""
    candidate_set_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A node with equal inputs and unequal output in `sequences` sequences, and the choices that differ there.

    `same_values`: the output differs in dtype only, every value is the same.
    """

    node: str
    op: str
    sequences: int
    same_values: bool
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of an error: share of bit-equal elements, absolute values, ulps of the coarser dtype, relative L2."""

    equal_share: float
    mean_abs: float
    max_abs: float
    mean_ulp: float
    max_ulp: int
    relative_l2: float
    nonfinite_reference: int
    nonfinite_candidate: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeError:
    """`carried`: candidate's value against the reference's. `local`: the candidate's op on the reference's inputs."""

    node: str
    op: str
    layer: int | None
    carried: Size
    local: Size


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGrowth:
    """The stream after a layer: the node that closes it, its carried error, and the largest local error inside."""

    name: str
    node: str
    carried: Size
    largest_local: float
    largest_local_node: str


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """One trial: KL(trial || reference) and k3 in nats per token, share of flipped token-layers, nodes changed.

    `flipped_routes` is None where there are no routes to compare.
    """

    kl: float
    k3: float
    flipped_routes: float | None
    changed_nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToggleResult:
    """One difference between the sides: `alone` in the reference, and `restored` alone in the candidate.

    A trial is None where an op refuses to run that mixture.

    `restored_change_low` and `_high` bound restored KL - candidate KL, 95 %, paired over sequences, nats per token.
    `restores_all`: restoring it alone gives the reference's bits at every node. `parent` is the toggle it is a part of,
    `set_by` are the flags and profiles that set it.
    """

    name: str
    kind: str
    reference: str
    candidate: str
    reference_origin: str
    candidate_origin: str
    flag: str | None
    parent: str | None
    nodes: int
    reference_set_by: str = ""
    candidate_set_by: str = ""
    alone: TrialResult | None
    restored: TrialResult | None
    restored_change_low: float
    restored_change_high: float
    restores_all: bool
    had_no_effect: bool
    masked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """A block named by a selector, with all its differences as one toggle; None where nothing differs in it."""

    selector: str
    nodes: int
    toggle: ToggleResult | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One side as it ran; `placement` as in `tensor 4, expert 2`, empty on one rank."""

    profile: str
    dtype: str
    micro_batch: int
    placement: str = ""

    def __str__(self) -> str:
        """`hf-default, bf16, micro-batch 8`, and its placement."""
        placed = f", {self.placement}" if self.placement else ""
        return f"{self.profile}, {self.dtype}, micro-batch {self.micro_batch}{placed}"


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
    """Everything one bisection found."""

    run: Run
    reference: Variant
    candidate: Variant
    verdict: Verdict
    metrics: Metrics
    roots: tuple[Root, ...]
    growth: tuple[LayerGrowth, ...]
    flips: RoutingFlips | None
    toggles: tuple[ToggleResult, ...]
    swaps: tuple[Swap, ...]
    reading: tuple[str, ...]
    nodes: tuple[NodeError, ...]
    warnings: tuple[str, ...] = ()
    distribution: Distribution | None = None
    recorded: Recorded | None = None
    classes: tuple[ClassMetrics, ...] = ()
    floor: Floor | None = None
    oracle: Oracle | None = None
    arrival: Arrival | None = None
    replay: Replay | None = None
    envelope: Envelope | None = None
    attribution: Attribution | None = None
    nearest: tuple[Nearest, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 parity, 1 divergence, 3 inconclusive."""
        return self.verdict.exit_code

    def to_json(self) -> str:
        """The report as JSON: strict, so that a number that is not finite is written as the word nan, inf or -inf."""
        return to_json(SCHEMA, self)
