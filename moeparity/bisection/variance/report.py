"""What compositions of the same sequences changed; plain data for the terminal and `--json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moeparity.bisection.degeneracy.data import Degeneracy
from moeparity.bisection.run.data import Cost, Run, Variant
from moeparity.output.json import to_json
from moeparity.plan.schedule.steps import FORWARD

SCHEMA = "moeparity.variance/2"
"""Schema of the JSON. The number grows if a field changes its meaning or goes; new fields may appear without that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What an op gets at once: [sequences, tokens], then `padding` rows; for attention also its number of keys."""

    sequences: int
    tokens: int
    phase: str
    padding: int = 0
    keys: int | None = None

    def __str__(self) -> str:
        """`8 x 24`, `decode 1 x 3 +1`, `decode 1 x 1, 24 keys`."""
        phase = "" if self.phase == FORWARD else f"{self.phase} "
        padding = f" +{self.padding}" if self.padding else ""
        keys = "" if self.keys is None else f", {self.keys} keys"
        return f"{phase}{self.sequences} x {self.tokens}{padding}{keys}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstOp:
    """The first node that gives some token other bits although everything that it reads has equal bits.

    layer: None outside the layers. sequences, tokens: how many differ, of `computed` tokens that both compositions
    compute.
    sequence, token: the first of them, from 0, padding not counted. against, rows: what the op got at once for this
    token in the group's first composition, and in this one.
    """

    node: str
    op: str
    layer: int | None
    sequences: int
    tokens: int
    computed: int
    sequence: int
    token: int
    against: Rows
    rows: Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerVariance:
    """What varies in one layer, or in the head. first_node: the first node with other bits, "" if none. tokens: how
    many have other bits after it, of `computed` that both compositions compute.
    """

    name: str
    first_node: str
    tokens: int
    computed: int

    @property
    def part(self) -> float:
        """The fraction of the computed tokens that have other bits; 0 if none is computed."""
        return self.tokens / self.computed if self.computed else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """exp(current - previous) of the `scored` tokens' log-probabilities, in fp64; previous is the group's first
    composition. off: tokens whose ratio is not exactly 1. low, high, mean: NaN if no token is finite.
    """

    scored: int
    off: int
    low: float
    high: float
    mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """Over the scored tokens, in nats: mean and largest |current - previous|, k3, KL over the vocabulary.

    mult_prob_error: NeMo-RL's token_mult_prob_error, the mean of exp(|current - previous|); 1 if nothing varies.
    unequal: tokens scored by values with other bits. nonfinite: tokens with a NaN or an infinity, left out of the
    means.
    """

    mean_abs_delta: float
    max_abs_delta: float
    mult_prob_error: float
    k3: float
    kl: float
    unequal: int
    nonfinite: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One composition against the first of its group. first_op: None if every token has equal bits in every op.

    layers: each layer in the order of the graph, then the node from which log-probabilities are read.
    """

    composition: str
    schedule: str
    first_op: FirstOp | None
    layers: tuple[LayerVariance, ...]
    ratio: Ratio
    distance: Distance


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupVariance:
    """Compositions of one kind, each compared with the first, `against`. left_out: which were not run, and why.

    is_one_model: False for packs in which a sequence's inputs depend on its neighbours.
    """

    kind: str
    against: str
    is_one_model: bool
    comparisons: tuple[Comparison, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SideVariance:
    """One side, or both if only their schedules differ.

    seeing: ops whose bits may depend on which tokens go through them together, with how many of their nodes.
    """

    sides: tuple[str, ...]
    variant: Variant
    seeing: Mapping[str, int]
    groups: tuple[GroupVariance, ...]

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """The comparisons of all groups."""
        return tuple(comparison for group in self.groups for comparison in group.comparisons)

    @property
    def varies(self) -> bool:
        """Whether some op gave some token other bits."""
        return any(comparison.first_op is not None for comparison in self.comparisons)


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceReport:
    """What `moeparity variance` found. reasons: why equal bits would say nothing here. reading: the result in
    sentences.

    synthetic: the seed of random weights; None if they are the checkpoint's.
    """

    run: Run
    synthetic: int | None
    sides: tuple[SideVariance, ...]
    degeneracy: Degeneracy
    reasons: tuple[str, ...]
    reading: tuple[str, ...]
    cost: Cost

    @property
    def exit_code(self) -> int:
        """0 nothing varies, 1 something does, 3 nothing does but that says nothing."""
        if any(side.varies for side in self.sides):
            return 1
        return 3 if self.reasons else 0

    def to_json(self) -> str:
        """Strict JSON; numbers that are not finite are the words nan, inf or -inf."""
        return to_json(SCHEMA, self)
