"""A sweep's points computed by workers: the same table, whatever comes first; kept points are asked of nobody."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from moeparity.bisection.resume.passes import Passes
from moeparity.bisection.sweep.run import sweep
from moeparity.bisection.workers import word
from moeparity.bisection.workers.crew import Crew
from moeparity.errors import MoeparityError
from tests.bisection.workers.hands import Hands, Shuffled
from tests.bisection.workers.test_force import write_recipe

OVER = ("dtype=bf16,fp16,fp32", "placement.tensor=1,3")
"""Of these 3 x 2 points three cannot run: three ranks do not divide the heads."""


@contextmanager
def hands_at_work(answer: Any, count: int = 3) -> Iterator[Hands]:
    hands = Hands(answer, count)

    @contextmanager
    def crew_of(wanted: Any, device: str) -> Iterator[Crew | None]:
        yield None if wanted is None else hands

    with patch.object(word, "crew_of", crew_of):
        yield hands


def points(text: str) -> Any:
    """The table without what its points cost."""
    table = json.loads(text)
    del table["digest"]
    return table


def test_the_table_is_that_of_a_local_sweep(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "sweep", "")
    local = sweep(recipe, OVER, device="cpu")
    with hands_at_work(Shuffled(0, losing=3)) as hands:
        shared = sweep(recipe, OVER, device="cpu", workers=3)
    assert points(shared.to_json()) == points(local.to_json())
    assert shared.exit_code == local.exit_code == 2
    assert sum(len(hand.asked) for hand in hands.hired) == 4


def test_a_killed_sweep_goes_on_and_kept_points_are_asked_of_nobody(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "sweep", "")
    local = sweep(recipe, OVER, device="cpu", run=tmp_path / "local")
    save, saved = Passes.save, []

    def killed(self: Passes, name: str, piece: object) -> None:
        save(self, name, piece)
        saved.append(name)
        if len(saved) == 2:
            raise KeyboardInterrupt

    with hands_at_work(Shuffled(1)), patch.object(Passes, "save", killed), pytest.raises(KeyboardInterrupt):
        sweep(recipe, OVER, device="cpu", run=tmp_path / "run", workers=3)
    with hands_at_work(Shuffled(2)) as hands:
        shared = sweep(recipe, OVER, device="cpu", run=tmp_path / "run", workers=2)
    assert sum(len(hand.asked) for hand in hands.hired) == 1
    assert points(shared.to_json()) == points(local.to_json())
    with hands_at_work(Shuffled(2)) as idle:
        again = sweep(recipe, OVER, device="cpu", run=tmp_path / "run", workers=2)
    assert idle.hired == []
    assert points(again.to_json()) == points(local.to_json())


def test_what_every_point_is_refused_for_is_said_once(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "sweep", "")
    with hands_at_work(Shuffled(0)) as hands, pytest.raises(MoeparityError, match="tensor"):
        sweep(recipe, ["placement.tensor=3"], device="cpu", workers=2)
    assert hands.hired == []
