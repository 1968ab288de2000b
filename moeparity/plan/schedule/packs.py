"""Packs: several sequences one behind the other in a row [1, n], as trainers without padding compute them."""

from __future__ import annotations

from moeparity.errors import SpecError, Where, counted
from moeparity.plan.schedule.dense import batches, columns
from moeparity.plan.schedule.settings import ScheduleSettings
from moeparity.plan.schedule.steps import Span, Step
from moeparity.plan.schedule.token_grid import StepList, TokenGrid


def packs(settings: ScheduleSettings, grid: TokenGrid, steps: StepList) -> None:
    """Add steps that pack sequences in their order; a sequence that does not fit starts a new pack. With decoding, only
    the columns before its start are packed.
    """
    pack: list[Span] = []
    for first, last in batches(settings, grid):
        boundary, _ = columns(settings, grid, first, last)
        for sequence in range(first, last):
            start, end = grid.spans[sequence]
            span = Span(sequence, start, min(end, boundary))
            if span.tokens <= 0:
                continue
            if sum(member.tokens for member in pack) + span.tokens > (settings.pack or 0):
                steps.add(_pack(pack, settings))
                pack = []
            pack.append(span)
    steps.add(_pack(pack, settings))


def refuse_long(settings: ScheduleSettings, grid: TokenGrid, where: Where) -> None:
    """Raises SpecError for a sequence that is longer than a pack."""
    longest = max(range(grid.sequences), key=grid.tokens)
    if settings.pack is not None and grid.tokens(longest) > settings.pack:
        raise SpecError(
            f"{where}: pack.length is {settings.pack}; sequence {longest} has {counted(grid.tokens(longest), 'token')}"
            ". Expected a length that holds every sequence; raise it."
        )


def _pack(spans: list[Span], settings: ScheduleSettings) -> Step:
    return Step(
        spans=tuple(spans),
        shape="packed",
        phase="forward" if settings.start is None else "prefill",
        isolated=settings.mask == "block",
    )
