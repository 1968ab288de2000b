"""Trials written out: a few recipes of the benchmark, and that it sees a mixture that nobody could write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.written_out import draw
from benchmarks.written_out.__main__ import AS_IT_SHOULD_BE, FAMILIES, opened, tokens
from benchmarks.written_out.trials import Compared, compared
from moeparity.ops.attribute import RefusedError
from moeparity.plan import toggles

SOLVED, SEEDS = 32, (32, 10, 19)
"""Recipes in which values rest and go along: in one nearest solves for an eps that a word stood for, one has two dtypes
and a swap, in the others every trial can be written.
"""


def rows(folder: Path, seed: int) -> Iterator[Compared]:
    family = FAMILIES[seed % len(FAMILIES)]
    model = opened(folder, family, layers=2)
    return compared(draw.write(folder, folder / family, tokens(folder), model.graph, seed), model, subsets=2)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_trial_is_the_recipe_written_of_it(request: pytest.FixtureRequest, tmp_path: Path, seed: int) -> None:
    if seed != SOLVED:
        # Their trials are the same however long nearest looks for what their functions are.
        request.getfixturevalue("brief_search")
    trials = list(rows(tmp_path, seed))
    others = [row for row in trials if row.outcome != "equal"]
    assert len(trials) - len(others) >= 16
    # A recipe has one dtype for a whole side; a mixture that nobody can run is none as a recipe either.
    cannot_be_written = {row.trial for row in others if row.outcome == "cannot be written"}
    assert all(row.outcome in AS_IT_SHOULD_BE for row in others), others
    assert all(trial.startswith("swapped") for trial in cannot_be_written)


@pytest.mark.usefixtures("brief_search")
def test_a_mixture_that_is_no_recipe_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what goes along, a form that is switched on loses its own sites; whether a bit shows it is up to the
    processor, and what a seed draws goes by the values that ops have, some of which no side can have together.
    """
    monkeypatch.setattr(toggles, "going_along", lambda *_: {})
    drawn = (row for seed in range(20) for row in rows_of_runnable(tmp_path / str(seed), seed))
    assert any(row.outcome == "other bits" for row in drawn)


def rows_of_runnable(folder: Path, seed: int) -> Iterator[Compared]:
    """Those of the recipe; none if it is refused."""
    try:
        yield from rows(folder, seed)
    except RefusedError:
        return
