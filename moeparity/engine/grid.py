"""The grid of tokens [B, T] that all walkers compute, cut into the steps of their schedules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import torch

from moeparity.engine.batch import Batch, Batches, Rows
from moeparity.engine.walker import Walker
from moeparity.numerics.joined_steps import Steps
from moeparity.plan.schedule.borders import Borders
from moeparity.plan.schedule.cases import Sizes
from moeparity.plan.schedule.rank_groups import dealt, of_group
from moeparity.plan.schedule.steps import FORWARD, Groups, MicroBatches, Phase, Schedule, Span, Step


@dataclass(frozen=True, slots=True)
class Turn:
    """Tokens that go through an op together: a step, or a part of a step.

    padding: how many rows of zeros follow them.
    source: tokens from which these are copied, one by one, instead of being computed (None: they are computed).
    starts: by sequence, the first token that has keys, if that is not the grid's first.
    steps: if the tokens are those of several steps, where each step's tokens lie. The op gives the bits of computing
        them step after step.
    group: which group of ranks computes the turn, under data-parallel attention, and how many groups there are.
    lag: how many updates older than the recipe's checkpoint its weights are.
    """

    batch: Batch
    phase: Phase = FORWARD
    isolated: bool = True
    padding: int = 0
    source: Batch | None = None
    starts: Mapping[int, int] = field(default_factory=dict)
    steps: Steps | None = None
    group: tuple[int, int] = (0, 1)
    lag: int = 0

    def queries(self, *, varlen: bool) -> tuple[Batch, ...]:
        """The batches of query tokens that an attention kernel is called for, one call each.

        Rows that lie flat are computed span by span, all others in one call. A `varlen` kernel also computes the
        sequences of a pack one by one, if they do not see each other.
        """
        alone = self.batch.shape == "flat" or (varlen and self.isolated)
        return self.batch.apart if alone else (self.batch,)

    def keys(self, queries: Batch) -> Batch:
        """The tokens whose keys some of these queries read."""
        at = queries.rectangle
        if at is None:
            return queries
        start = min(self.starts.get(at.first, 0), at.start)
        return queries.grid.rectangle(at.first, at.last, start, at.end)

    @property
    def sizes(self) -> Sizes:
        """The numbers that choices may depend on."""
        every = self.batch.apart if self.batch.shape == "flat" else (self.batch,)
        longest = max(self.keys(batch).size[1] for batch in every)
        queries = self.batch.size[1]
        return Sizes(self.phase, self.tokens + self.padding, longest, longest, queries, self.lag)

    def sizes_of(self, queries: Batch, among: Sizes) -> Sizes:
        """The same for some of this turn's tokens that attention computes in one call; `among` are the sizes of the
        whole turn.
        """
        return among._replace(keys=self.keys(queries).size[1], queries=queries.size[1])

    @property
    def tokens(self) -> int:
        """How many tokens there are, without padding."""
        return self.batch.size[0] * self.batch.size[1]

    @property
    def rows(self) -> Rows:
        """The range of sequences that its tokens are from."""
        if self.source is None:
            return self.batch.rows
        return min(self.batch.rows[0], self.source.rows[0]), max(self.batch.rows[1], self.source.rows[1])


class Grid(Batches):
    """All tokens, cut by every schedule.

    waves: the smallest runs of sequences such that no step of any schedule has tokens from two runs, nor, with `pairs`,
        sequences 2i and 2i + 1 lie in two runs.
    turns: the steps of each schedule, by wave.
    head_turns: the same for the head.
    borders: where the steps of each schedule take states over. With `unreset` that is a sequence's beginning too, for
        these schedules, so that it is of one wave with the sequence before it.
    apart, head_apart: the same as groups of ranks compute them under data-parallel attention, each the rows of its own
        sequences.
    """

    def __init__(
        self,
        sequences: int,
        length: int,
        schedules: Iterable[Schedule | MicroBatches],
        unreset: Iterable[Schedule | MicroBatches] = (),
        *,
        pairs: bool = False,
    ) -> None:
        super().__init__(sequences, length)
        self.schedules = {schedule: schedule.on(sequences, length) for schedule in schedules}
        self.borders = {key: Borders(schedule) for key, schedule in self.schedules.items()}
        steps = {key: _with_filled_phases(schedule) for key, schedule in self.schedules.items()}
        starts = {key: _starts(filled) for key, filled in steps.items()}
        turns = {
            key: [turn for step in filled for turn in self._turns(step, starts[key])] for key, filled in steps.items()
        }
        head_turns = {
            key: [turn for step in filled for turn in self._head_turns(step)] for key, filled in steps.items()
        }
        grouped = {
            key: _of_groups(schedule.groups, steps[key])
            for key, schedule in self.schedules.items()
            if schedule.groups.count > 1
        }
        apart = {
            key: [
                replace(turn, group=group)
                for group_step, group in parts
                for turn in self._turns(group_step, starts[key])
            ]
            for key, parts in grouped.items()
        }
        head_apart = {
            key: [replace(turn, group=group) for group_step, group in parts for turn in self._head_turns(group_step)]
            for key, parts in grouped.items()
        }
        every = [*turns.values(), *head_turns.values(), *apart.values(), *head_apart.values()]
        self.placed = [[turn.batch for turn in schedule_turns] for schedule_turns in every]
        reaches = [turn.rows for schedule_turns in every for turn in schedule_turns]
        for begin, end in (pair for key in unreset for pair in self.borders[key].unreset.items()):
            reaches.append((min(begin.sequence, end.sequence), max(begin.sequence, end.sequence) + 1))
        if pairs:
            reaches += [(first, first + 2) for first in range(0, sequences - 1, 2)]
        self.waves = self._cut_into_waves(reaches)
        self.turns = {key: self._by_wave(placed) for key, placed in turns.items()}
        self.head_turns = {key: self._by_wave(placed) for key, placed in head_turns.items()}
        self.apart = {key: self._by_wave(placed) for key, placed in apart.items()}
        self.head_apart = {key: self._by_wave(placed) for key, placed in head_apart.items()}

    @classmethod
    def of(cls, walkers: Sequence[Walker], sequences: int, length: int) -> Grid:
        """The grid that these walkers compute."""
        schedules = dict.fromkeys(walker.schedule for walker in walkers)
        unreset = {w.schedule: None for w in walkers if not w.resets}
        pairs = any(walker.plan.graph.pairs for walker in walkers)
        return cls(sequences, length, schedules, unreset, pairs=pairs)

    def open_packs(self, of: Schedule | MicroBatches, wave: Rows) -> list[Batch]:
        """The packs of a schedule in which tokens see other sequences."""
        turns = self.turns[of][wave] if of.has_packs else ()
        return [turn.batch for turn in turns if not turn.isolated and turn.batch.rectangle is None]

    def positions(self, of: Schedule | MicroBatches, mask: torch.Tensor) -> torch.Tensor:
        """The position of every token as a schedule counts, int64 [B, T]; `mask` [B, T] bool is true on real tokens."""
        schedule = self.schedules[of]
        if schedule.positions == "tokens":
            # As transformers' generate counts: what stands before the first real token has position 1.
            return (mask.long().cumsum(-1) - 1).masked_fill(~mask, 1)
        columns = torch.arange(self.length, device=mask.device).repeat(self.sequences)
        if schedule.positions == "running":
            for step in schedule.steps:
                places = self.batch(step.spans, step.shape).index.to(columns.device)
                columns[places] = torch.arange(step.tokens, device=columns.device)
        return columns.view(self.sequences, self.length)

    def _turns(self, step: Step, starts: Mapping[int, int] | None = None) -> Iterator[Turn]:
        """The turns of a step: one that computes, and one that copies."""
        if step.spans:
            batch, own_starts = self.batch(step.spans, step.shape), starts if step.shape == "flat" else None
            yield Turn(batch, step.phase, step.isolated, step.padding, starts=own_starts or {}, lag=step.lag)
        yield from self._copies(step)

    def _copies(self, step: Step) -> Iterator[Turn]:
        if step.copies:
            targets = tuple(Span(copy.sequence, copy.first, copy.last) for copy in step.copies)
            sources = tuple(Span(c.source, c.first + c.shift, c.last + c.shift) for c in step.copies)
            yield Turn(self.batch(targets, "flat"), step.phase, source=self.batch(sources, "flat"))

    def _head_turns(self, step: Step) -> Iterator[Turn]:
        """The turns of a step at the head: the rows that the engine's head computes; and the rest, whose logits nobody
        reads, because the grid needs values everywhere.
        """
        if step.scored is None:
            yield from self._turns(step)
            return
        scored_spans = step.scored_spans
        firsts = {span.sequence: span.first for span in scored_spans}
        rest = [span._replace(last=firsts.get(span.sequence, span.last)) for span in step.spans]
        for spans in (scored_spans, [span for span in rest if span.tokens]):
            if spans:
                yield Turn(self.batch(tuple(spans), step.shape if _alike(spans) else "flat"), step.phase, lag=step.lag)
        yield from self._copies(step)

    def _by_wave(self, turns: Sequence[Turn]) -> Mapping[Rows, tuple[Turn, ...]]:
        return {wave: tuple(turn for turn in turns if _inside(turn.rows, wave)) for wave in self.waves}

    @cached_property
    def fillers(self) -> frozenset[int]:
        """The cells of tokens that some schedule computes only so that every token has values."""
        steps = (step for schedule in self.schedules.values() for step in schedule.steps if step.filler)
        return frozenset(cell for step in steps for cell in self.batch(step.spans, step.shape).cells)

    def _cut_into_waves(self, reaches: Sequence[Rows]) -> tuple[Rows, ...]:
        edges, reached = [0], 0
        for first, last in sorted(reaches):
            if first >= reached > 0:
                edges.append(first)
            reached = max(reached, last)
        return tuple(pairwise([*edges, self.sequences]))


def _with_filled_phases(schedule: Schedule) -> list[Step]:
    """The steps of a schedule, with the fillers in the schedule's last phase."""
    return [replace(step, phase=schedule.phases[-1]) if step.filler else step for step in schedule.steps]


def _of_groups(groups: Groups, steps: Sequence[Step]) -> list[tuple[Step, tuple[int, int]]]:
    """The part of each step that each group of ranks computes, with the group."""
    group_of = dealt(steps, groups.count)
    parts = (
        (of_group(step, group_of, group), (group, groups.count)) for step in steps for group in range(groups.count)
    )
    return [(step, group) for step, group in parts if step is not None]


def _starts(steps: Iterable[Step]) -> Mapping[int, int]:
    """For each sequence in flat steps, the first token that is computed or copied. Padding before it has no keys."""
    starts: dict[int, int] = {}
    for step in steps:
        for part in step.parts if step.shape == "flat" and not step.filler else ():
            starts[part.sequence] = min(part.first, starts.get(part.sequence, part.first))
    return starts


def _alike(spans: Sequence[Span]) -> bool:
    return len({(span.first, span.last) for span in spans}) == 1


def _inside(rows: Rows, outer: Rows) -> bool:
    return outer[0] <= rows[0] and rows[1] <= outer[1]
