"""Some of the jobs that `python -m tests.ranks.drawn` draws."""

from __future__ import annotations

import pytest

from tests.ranks.drawn.__main__ import Run, tried
from tests.ranks.drawn.case import KINDS, draw

SEEDS = {
    "none": 12,
    "collective dtype": 22,
    "collective shape": 631,
    "extra draw": 77,
    "killed": 90,
    "raises": 30,
}
"""One of a kind: five ranks with groups and without any fault; a rank that gloo aborts for what another called; a group
of some ranks; a draw that changes the payload too; rank 0, which holds the store; a rank that raises.
"""


@pytest.fixture(scope="module")
def runs() -> dict[int, Run]:
    """All of them, at once."""
    return {run.seed: run for run in tried(list(SEEDS.values()), at_once=len(SEEDS))}


@pytest.mark.parametrize("kind", SEEDS)
def test_what_is_drawn_is_named_with_rank_and_call_and_nothing_is_left(runs: dict[int, Run], kind: str) -> None:
    run = runs[SEEDS[kind]]
    assert (run.kind, run.breach) == (kind, ""), run.says


def test_draws_take_every_kind_and_jobs_without_any() -> None:
    cases = [draw(seed) for seed in range(200)]
    kinds = [fault.kind for case in cases for fault in case.faults]
    assert set(kinds) == set(KINDS)
    assert min(kinds.count(kind) for kind in KINDS) >= 5
    assert sum(not case.faults for case in cases) == 50
    assert {case.ranks for case in cases} == {2, 3, 4, 5, 6, 8}
    assert draw(7) == draw(7)
