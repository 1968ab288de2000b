"""The schedule of a side: makes steps of its settings and of the tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from moeparity.errors import SpecError, Where, counted
from moeparity.plan.schedule.check import refuse
from moeparity.plan.schedule.dense import batches, rectangles, refuse_ragged
from moeparity.plan.schedule.packs import packs, refuse_long
from moeparity.plan.schedule.server import Server
from moeparity.plan.schedule.settings import ScheduleSettings, described
from moeparity.plan.schedule.sglang import SGLang
from moeparity.plan.schedule.steps import Positions, Schedule, Step
from moeparity.plan.schedule.token_grid import StepList, TokenGrid, fillers, refuse_more
from moeparity.plan.schedule.updates import on_versions, refuse_other_sequences, refuse_outside, update_columns
from moeparity.plan.schedule.vllm_v1 import VllmV1

SERVERS: Final[dict[str, type[Server]]] = {"vllm-v1": VllmV1, "sglang": SGLang}


def schedule(settings: ScheduleSettings, grid: TokenGrid, where: Where) -> Schedule:
    """A schedule with every token of the grid in exactly one step; tokens that no engine would compute are in `filler`
    steps after all others.

    Works for the settings of a side and for any mixture of two sides' (`mixed`). A setting that does not apply is
    ignored: packs under a server's rule; a prefix cache, buckets and arrivals without a server's rule. Raises SpecError
    for too many steps, and for a recorded schedule that does not fit this grid.
    """
    if settings.recorded is not None:
        recorded = settings.recorded.schedule
        refuse(recorded, grid, settings.recorded.where)
        return replace(recorded, steps=(*recorded.steps, *fillers(recorded.steps, grid)), groups=settings.groups)
    refuse_other_sequences(settings, grid, where)
    steps = StepList(where)
    if settings.is_flat:
        server = SERVERS[settings.rule](settings, grid)
        for first, last in batches(settings, grid):
            server.serve(range(first, last), steps)
    else:
        if settings.pack is not None:
            packs(settings, grid, steps)
        rectangles(settings, grid, steps, prefilled=settings.pack is not None)
    run = steps.steps
    if settings.updates:
        run = list(on_versions(run, update_columns(settings, grid), [last for _, last in grid.spans]))
        refuse_more(len(run), steps.most, where)
    return Schedule(
        steps=(*run, *fillers(run, grid)),
        positions=_positions(settings, steps.steps),
        name=described(settings),
        groups=settings.groups,
        recomputes=settings.recomputes and bool(settings.updates),
    )


def refuse_unfit(settings: ScheduleSettings, grid: TokenGrid, where: Where) -> None:
    """Raises SpecError for settings of a side that do not fit the tokens. Mixtures need no check: if both sides fit, a
    mixture fits.
    """
    if settings.arrivals and len(settings.arrivals) != grid.sequences:
        raise SpecError(
            f"{where}: decode.arrivals names {counted(len(settings.arrivals), 'step')}; expected one for each of the "
            f"{counted(grid.sequences, 'sequence')} of the tokens."
        )
    refuse_outside(settings, grid, where)
    if settings.recorded is None and not settings.is_flat:
        refuse_ragged(settings, grid, where)
        refuse_long(settings, grid, where)


def _positions(settings: ScheduleSettings, steps: list[Step]) -> Positions:
    if settings.pack is not None and not settings.is_flat:
        return "running" if settings.positions == "running" else "tokens"
    is_generated = settings.is_flat or settings.start is not None or any(step.phase == "chunk" for step in steps)
    return "tokens" if is_generated else "columns"
