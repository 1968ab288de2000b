"""A schedule as a list of steps over a grid of tokens; known without torch.

All variants of a run look at one grid of tokens [B, T]. A step is the tokens that go through every op together: a
training forward's micro-batch, a prefill, one decode step of all running requests, a pack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal, NamedTuple, get_args

Shape = Literal["dense", "flat", "packed"]
"""dense: a rectangle [b, t], the same tokens of consecutive sequences; flat: rows behind each other, [1, n], of which
attention takes the spans one by one; packed: [1, n] for attention too."""

Phase = Literal["forward", "prefill", "chunk", "decode", "verify"]
"""forward: no key or value is kept for a later step. prefill: a prompt from its first token on, all of it. chunk: a
part of a prompt, or what follows a prefix that was found in a cache. decode: one token of each sequence. verify:
several, of which all but the first were drafted."""

Positions = Literal["columns", "tokens", "running"]
"""Where the positions of a sequence start: at the grid's first column, or at its first token; or they run on through a
pack."""

Gathered = Literal["mlp", "experts"]
"""What takes the rows of all groups. mlp: all that follows attention, to the head (SGLang 0.5.23, srt/layers/
communicator.py and logits_processor.py). experts: the routed experts alone, so that gate, shared experts and head see
a group's own rows (vLLM 0.33.0, model_executor/layers/fused_moe/runner/moe_runner.py, _maybe_dispatch)."""


@dataclass(frozen=True, slots=True)
class Groups:
    """How many groups attend apart (1: all ranks together), and what takes the rows of all of them."""

    count: int = 1
    gathered: Gathered = "mlp"


TOGETHER: Final = Groups()

FORWARD: Final = "forward"
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
SHAPES: Final[tuple[Shape, ...]] = get_args(Shape)


class Span(NamedTuple):
    """Tokens first to last - 1 of one sequence."""

    sequence: int
    first: int
    last: int

    @property
    def tokens(self) -> int:
        """How many."""
        return self.last - self.first


class Copy(NamedTuple):
    """Tokens first to last - 1 of one sequence, of which no value is computed: each is that of the same token of
    `source`, `shift` columns further on. A prefix cache gives such.
    """

    sequence: int
    first: int
    last: int
    source: int
    shift: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Tokens that go through every op together, in the order of `spans`.

    shape: what an op sees of them. `isolated`: in a pack, whether a token sees the tokens of its own sequence only.
    padding: rows that are computed behind the others and thrown away (a server's graph sizes); only of flat steps.
    scored: of a step whose head sees fewer rows than the layers: the spans whose last token reaches it, by their place
    in `spans` (None: every row does). verified: the spans all of whose tokens reach it, where others have only their
    last: drafted tokens beside parts of prompts.
    copies: tokens that are there from this step on without being computed; their sources are in this step or before.
    filler: tokens of the grid that the engine would not compute (padding, the last token of a sequence); they are
    computed behind all others, so that every token has values.
    """

    spans: tuple[Span, ...]
    shape: Shape = "dense"
    phase: Phase = FORWARD
    isolated: bool = True
    padding: int = 0
    scored: tuple[int, ...] | None = None
    verified: tuple[int, ...] = ()
    copies: tuple[Copy, ...] = ()
    filler: bool = False

    @property
    def parts(self) -> tuple[Copy | Span, ...]:
        """What is there from this step on: copies, then spans."""
        return (*self.copies, *self.spans)

    @property
    def scored_spans(self) -> tuple[Span, ...]:
        """The tokens that reach the head, in the order of their rows."""
        if self.scored is None:
            return self.spans
        whole, last = set(self.verified), set(self.scored)
        return tuple(
            span if place in whole else span._replace(first=span.last - 1)
            for place, span in enumerate(self.spans)
            if place in whole | last
        )

    @property
    def tokens(self) -> int:
        """How many tokens there are, padding rows aside."""
        return sum(span.tokens for span in self.spans)

    @property
    def rows(self) -> int:
        """How many rows an op sees."""
        return self.tokens + self.padding


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """All steps of one variant, in the order in which they are made; every token of the grid is in exactly one, as a
    span or as a copy.

    positions: where the positions of a sequence start: at the grid's first column, or at its first real token
    (`generate` of transformers, servers); or they run on through a pack.
    name: what people call it. groups: of ranks that attend apart, each to sequences of its own.
    """

    steps: tuple[Step, ...]
    positions: Positions = "columns"
    name: str = ""
    groups: Groups = TOGETHER

    def __hash__(self) -> int:
        """By its first step: a rollout has thousands of spans, and a pass asks for its turns at every node."""
        return hash((len(self.steps), *(step.spans for step in self.steps[:1])))

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The phases there are, in the order of their first steps; fillers go along with the last."""
        return tuple(dict.fromkeys(step.phase for step in self.steps if not step.filler)) or (FORWARD,)

    @cached_property
    def has_history(self) -> bool:
        """Whether some step reads keys and values that an earlier one made."""
        return any(span.first > 0 for step in self.steps for span in step.spans)

    @cached_property
    def has_packs(self) -> bool:
        """Whether attention takes several sequences in one."""
        return any(step.shape == "packed" and len(step.spans) > 1 for step in self.steps)

    @cached_property
    def has_copies(self) -> bool:
        """Whether some values are those of other tokens."""
        return any(step.copies for step in self.steps)

    @property
    def mixes_sequences(self) -> bool:
        """Whether tokens of a pack see those of other sequences."""
        return any(step.shape == "packed" and not step.isolated and len(step.spans) > 1 for step in self.steps)

    def on(self, sequences: int, length: int) -> Schedule:
        """The schedule of the first sequences alone, whose tokens [sequences, length] it holds as they are."""
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

    groups: as of a schedule.
    """

    size: int
    groups: Groups = TOGETHER

    @property
    def has_history(self) -> bool:
        """Nothing is read of an earlier step."""
        return False

    @property
    def has_packs(self) -> bool:
        """A trainer's packs are steps."""
        return False

    @property
    def has_copies(self) -> bool:
        """Every token is computed."""
        return False

    @property
    def phases(self) -> tuple[Phase, ...]:
        """It has one."""
        return (FORWARD,)

    def on(self, sequences: int, length: int) -> Schedule:
        """As steps on a grid of tokens [sequences, length]."""
        batches = ((start, min(start + self.size, sequences)) for start in range(0, sequences, self.size))
        return Schedule(steps=tuple(rectangle(first, last, 0, length) for first, last in batches), groups=self.groups)


def _among(step: Step, sequences: int) -> Step:
    """A step with what it copies among the first sequences."""
    return replace(step, copies=tuple(copy for copy in step.copies if max(copy.sequence, copy.source) < sequences))


def with_spans(step: Step, places: Sequence[int]) -> Step:
    """A step with the spans at some places alone."""

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


def runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ascending whole numbers as runs (first, last + 1) without gaps."""
    start = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            yield numbers[start], numbers[i - 1] + 1
            start = i
