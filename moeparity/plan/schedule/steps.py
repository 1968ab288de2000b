"""A schedule as a list of steps over a grid of tokens, without torch.

All variants of a run look at one grid of tokens [B, T]. A step is the tokens that go through every op together: a
training forward's micro-batch, a prefill, one decode step of all running requests, a pack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal, NamedTuple, get_args

Shape = Literal["dense", "flat", "packed"]
"""dense: a rectangle [b, t], the same columns of consecutive sequences. flat: all rows one behind the other, [1, n];
attention computes each span by itself. packed: [1, n] for attention too."""

Phase = Literal["forward", "prefill", "chunk", "decode", "verify"]
"""forward: no key or value is kept for a later step. prefill: a prompt from its first token on, all of it. chunk: a
part of a prompt, or what follows a prefix that was found in a cache. decode: one token of each sequence. verify:
several, of which all but the first were drafted."""

Positions = Literal["columns", "tokens", "running"]
"""Where the positions of a sequence start counting: `columns` at the grid's first column, `tokens` at its own first
token; `running`: they continue through a pack."""

Gathered = Literal["mlp", "experts"]
"""Which nodes get the rows of all groups together. mlp: everything after attention, up to the head (SGLang 0.5.23,
srt/layers/communicator.py and logits_processor.py). experts: the routed experts only, so that gate, shared experts and
head get a group's own rows (vLLM 0.33.0, model_executor/layers/fused_moe/runner/moe_runner.py, _maybe_dispatch)."""


@dataclass(frozen=True, slots=True)
class Groups:
    """How many groups attend apart (1: all ranks together), and which nodes get the rows of all groups."""

    count: int = 1
    gathered: Gathered = "mlp"


TOGETHER: Final = Groups()

FORWARD: Final = "forward"
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
SHAPES: Final[tuple[Shape, ...]] = get_args(Shape)


class Span(NamedTuple):
    """Tokens `first` to `last` - 1 of one sequence, as columns of the grid."""

    sequence: int
    first: int
    last: int

    @property
    def tokens(self) -> int:
        """How many."""
        return self.last - self.first


class Copy(NamedTuple):
    """Tokens `first` to `last` - 1 of one sequence whose values are copied, not computed, as from a prefix cache.

    They are those of the sequence `source`, `shift` columns further on.
    """

    sequence: int
    first: int
    last: int
    source: int
    shift: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Tokens that go through every op together, in the order of `spans`.

    shape: how ops see them. isolated: in a pack, whether a token sees only the tokens of its own sequence.
    padding: rows computed after the others and thrown away (as a server pads to its CUDA graph sizes); flat steps only.
    scored: the spans whose last token reaches the head, by their index in `spans`, where the head sees fewer rows than
    the layers (None: every row reaches it). verified: the spans whose tokens all reach it, beside those of `scored`:
    drafted tokens in a step with parts of prompts. drafted: how many tokens before the last one of each span in
    `scored` reach it too: those that are verified beside a prompt.
    copies: tokens whose values are copied, not computed; available from this step on. Their sources are in this step or
    an earlier one. stale: whether tokens may be copied that stand behind others than their own sequence has: rejected
    drafts whose keys an engine left in its cache.
    filler: whether these are tokens that the engine would not compute (padding, the last token of a sequence). They are
    computed after all others, so that every token of the grid has values.
    lag: how many updates older than the recipe's checkpoint the weights of this step are; 0 are the checkpoint's own.
    """

    spans: tuple[Span, ...]
    shape: Shape = "dense"
    phase: Phase = FORWARD
    isolated: bool = True
    padding: int = 0
    scored: tuple[int, ...] | None = None
    verified: tuple[int, ...] = ()
    drafted: int = 0
    copies: tuple[Copy, ...] = ()
    stale: bool = False
    filler: bool = False
    lag: int = 0

    @property
    def parts(self) -> tuple[Copy | Span, ...]:
        """All tokens that have values from this step on: copies, then spans."""
        return (*self.copies, *self.spans)

    @property
    def scored_spans(self) -> tuple[Span, ...]:
        """The tokens that reach the head, in the order of their rows."""
        if self.scored is None:
            return self.spans
        whole, last = set(self.verified), set(self.scored)
        return tuple(
            span if place in whole else span._replace(first=max(span.first, span.last - 1 - self.drafted))
            for place, span in enumerate(self.spans)
            if place in whole | last
        )

    @property
    def tokens(self) -> int:
        """How many tokens there are, without padding rows."""
        return sum(span.tokens for span in self.spans)

    @property
    def rows(self) -> int:
        """How many rows an op sees."""
        return self.tokens + self.padding


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """All steps of one variant, in the order in which they are run; every token of the grid is in exactly one, as a
    span or as a copy.

    positions: where the positions of a sequence start: at the grid's first column; at its first real token (`generate`
    of transformers, servers); or they continue through a pack.
    name: what it is called in reports. groups: groups of ranks that attend apart, each to its own sequences.
    recomputes: whether, when other weights come in, they compute anew what earlier steps have left in the cache.
    """

    steps: tuple[Step, ...]
    positions: Positions = "columns"
    name: str = ""
    groups: Groups = TOGETHER
    recomputes: bool = False

    def __hash__(self) -> int:
        """Of the first step only: a rollout has thousands of spans, and a pass looks the schedule up at every node."""
        return hash((len(self.steps), *(step.spans for step in self.steps[:1])))

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of its steps, in the order of their first steps; fillers are not counted."""
        return tuple(dict.fromkeys(step.phase for step in self.steps if not step.filler)) or (FORWARD,)

    @cached_property
    def lags(self) -> frozenset[int]:
        """The lags of the weights of its steps; fillers are not counted."""
        return frozenset(step.lag for step in self.steps if not step.filler) or frozenset({0})

    @cached_property
    def has_history(self) -> bool:
        """Whether some step reads keys and values of an earlier one."""
        return any(span.first > 0 for step in self.steps for span in step.spans)

    @cached_property
    def has_packs(self) -> bool:
        """Whether attention computes several sequences in one call, as one row."""
        return any(step.shape == "packed" and len(step.spans) > 1 for step in self.steps)

    @cached_property
    def has_copies(self) -> bool:
        """Whether some tokens' values are copied from other sequences."""
        return any(step.copies for step in self.steps)

    @cached_property
    def rejects_drafts(self) -> bool:
        """Whether steps with rejected drafts are computed in sequences of their own."""
        return any(step.copies and (step.phase == "verify" or step.drafted) for step in self.steps)

    @property
    def mixes_sequences(self) -> bool:
        """Whether tokens see others than those before them: other sequences of a pack, or rejected drafts."""
        return any(
            step.stale or (step.shape == "packed" and not step.isolated and len(step.spans) > 1) for step in self.steps
        )

    def on(self, sequences: int, length: int) -> Schedule:
        """The schedule restricted to the first `sequences` sequences of the grid."""
        assert all(span.last <= length for step in self.steps for span in step.spans)
        if all(span.sequence < sequences for step in self.steps for span in step.spans):
            return self
        places_of = (
            (step, [i for i, span in enumerate(step.spans) if span.sequence < sequences]) for step in self.steps
        )
        steps = ((with_spans(step, places), places) for step, places in places_of)
        return replace(self, steps=tuple(_among(step, sequences) for step, places in steps if places))


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """Whole sequences, `size` at a time, the last batch smaller: a trainer's forward, of any number of sequences.

    groups: as in `Schedule`.
    """

    size: int
    groups: Groups = TOGETHER

    @property
    def has_history(self) -> bool:
        """False: no step reads anything of an earlier one."""
        return False

    @property
    def has_packs(self) -> bool:
        """False: packs are a `Schedule`."""
        return False

    @property
    def has_copies(self) -> bool:
        """False: every token is computed."""
        return False

    @property
    def rejects_drafts(self) -> bool:
        """False: nothing is drafted."""
        return False

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Only `forward`."""
        return (FORWARD,)

    @property
    def recomputes(self) -> bool:
        """False: no weights come in."""
        return False

    @property
    def lags(self) -> frozenset[int]:
        """Only 0: the checkpoint's own weights."""
        return frozenset({0})

    def on(self, sequences: int, length: int) -> Schedule:
        """The same as a `Schedule` of a grid of tokens [sequences, length]."""
        batches = ((start, min(start + self.size, sequences)) for start in range(0, sequences, self.size))
        return Schedule(steps=tuple(rectangle(first, last, 0, length) for first, last in batches), groups=self.groups)


def _among(step: Step, sequences: int) -> Step:
    """A step with only those copies whose source and target are among the first `sequences`."""
    return replace(step, copies=tuple(copy for copy in step.copies if max(copy.sequence, copy.source) < sequences))


def with_spans(step: Step, places: Sequence[int]) -> Step:
    """A step with only the spans at these indices."""

    def renumbered(of: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(places.index(place) for place in of if place in places)

    return replace(
        step,
        spans=tuple(step.spans[place] for place in places),
        scored=None if step.scored is None else renumbered(step.scored),
        verified=renumbered(step.verified),
    )


def rectangle(first: int, last: int, start: int, end: int, phase: Phase = FORWARD) -> Step:
    """The tokens start to end - 1 of the sequences first to last - 1, as [b, t]."""
    return Step(spans=tuple(Span(sequence, start, end) for sequence in range(first, last)), phase=phase)
