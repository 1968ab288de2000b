"""Schedules that do not fit their tokens: two sequences of five, of which the first begins with one token of prompt and
the second with two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from moeparity.errors import Where
from moeparity.plan.schedule.make import refuse_unfit, schedule
from moeparity.plan.schedule.settings import settings
from moeparity.plan.schedule.token_grid import TokenGrid
from moeparity.plan.spec import reader

TOKENS = TokenGrid(spans=((0, 5), (0, 5)), prompts=(1, 2), length=5, ids=((1, 2, 3, 4, 5), (1, 2, 3, 9, 5)))
LONG = TokenGrid(spans=((0, 1_000_001),), prompts=(1,), length=1_000_001)


def meet(path: Path, tokens: TokenGrid = TOKENS) -> object:
    """The schedule of a recipe's candidate, or of a file of batches, over these tokens."""
    where, scheduling = Where(path), reader.read_scheduling({"file": path.name}, Where(path))
    if path.suffix == ".yaml":
        candidate = reader.read_recipe(path).candidate
        assert candidate.schedule is not None
        where, scheduling = Where(path, candidate.line_of("schedule")), candidate.schedule
    by = settings(scheduling, None, tokens.sequences, where)
    refuse_unfit(by, tokens, where)
    return schedule(by, tokens, where)


def _of(fields: dict[str, object], tokens: TokenGrid) -> object:
    where = Where(Path("forward"))
    return schedule(settings(reader.read_scheduling(fields, where), None, 1, where), tokens, where)


CALLS: dict[str, Callable[[], object]] = {
    "python-schedule-unknown-key": lambda: _of({"decoding": {"from": 3}}, TOKENS),
    "python-schedule-of-a-million-steps": lambda: _of({"decode": {"from": 1}}, LONG),
}
