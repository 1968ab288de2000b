"""Other legal schedules of a side: how the same engine might have batched the same tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from moeparity.errors import SpecError, Where
from moeparity.plan.schedule.make import refuse_unfit, schedule
from moeparity.plan.schedule.settings import ScheduleSettings
from moeparity.plan.schedule.token_grid import TokenGrid

MOST: Final = 4


def others(of: ScheduleSettings, grid: TokenGrid, where: Where) -> dict[str, ScheduleSettings]:
    """Up to four schedules with other steps, by name; none for a recorded schedule, which is a fact.

    Other batch sizes are divisors of the side's own, so that no wave of sequences grows (of 1 it is 2). For a server
    also: fewer requests at once, half the token budget (or half of all prompts), no prefix cache, the opposite order of
    arrival.
    """
    if of.recorded is not None:
        return {}
    distinct, schedules = [schedule(of, grid, where).steps], {}
    for name, settings in _candidates(of, grid):
        try:
            refuse_unfit(settings, grid, where)
            steps = schedule(settings, grid, where).steps
        except SpecError:
            # Sequences that cannot be in one batch, or too many steps: not a possible schedule.
            continue
        if steps not in distinct:
            distinct.append(steps)
            schedules[name] = settings
    return dict(list(schedules.items())[:MOST])


def _candidates(of: ScheduleSettings, grid: TokenGrid) -> Iterator[tuple[str, ScheduleSettings]]:
    if of.pack is not None:
        longest = max(map(grid.tokens, range(grid.sequences)))
        for length in (max(of.pack // 2, longest), longest):
            yield f"packs of {length:,} tokens", replace(of, pack=length)
    elif of.is_flat:
        yield from _of_a_server(of, grid)
    else:
        size = of.batch or grid.sequences
        half = next((divisor for divisor in range(size // 2, 0, -1) if size % divisor == 0), 2)
        noun = "micro-batch" if of.start is None else "batches of"
        for batch in sorted({half, 1}):
            yield f"{noun} {batch}", replace(of, batch=batch)


def _of_a_server(of: ScheduleSettings, grid: TokenGrid) -> Iterator[tuple[str, ScheduleSettings]]:
    sequences = grid.sequences
    prompts = sum(grid.prompt_end(sequence, of.start) - grid.spans[sequence][0] for sequence in range(sequences))
    yield "one by one", replace(of, batch=1, continuous=False, arrivals=())
    running = min(of.sequences or sequences, sequences)
    yield f"at most {max(running // 2, 1)} at once", replace(of, sequences=max(running // 2, 1))
    page = of.block or 1
    budget = max(min(of.chunk or prompts, prompts) // 2 // page, 1) * page
    yield f"chunks of {budget:,} tokens", replace(of, chunk=budget)
    yield "no prefix cache", replace(of, block=None)
    arrivals = tuple(range(sequences - 1, -1, -1))
    yield "the opposite order of arrival", replace(of, batch=sequences, continuous=True, arrivals=arrivals)
