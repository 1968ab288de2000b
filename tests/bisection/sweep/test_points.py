"""A sweep's points computed by workers: the same table, whatever comes first; kept points are asked of nobody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from moeparity.bisection.resume.pieces import PieceStore
from moeparity.bisection.sweep.report import Sweep
from moeparity.bisection.sweep.run import sweep
from moeparity.bisection.workers import request
from moeparity.errors import MoeparityError
from tests.bisection.workers.hands import Hand, Shuffled, at_work
from tests.bisection.workers.test_sharded_pass import write_recipe

OVER = ("dtype=bf16,fp16,fp32", "placement.tensor=1,3")
"""Of these 3 x 2 points three cannot run: three ranks do not divide the heads."""


def points(text: str) -> Any:
    """The table without what its points cost."""
    table = json.loads(text)
    del table["digest"]
    return table


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("points"), "sweep", "")


@pytest.fixture(scope="module")
def local(recipe: Path) -> Sweep:
    return sweep(recipe, OVER, device="cpu")


def test_the_table_is_that_of_a_local_sweep(recipe: Path, local: Sweep) -> None:
    with at_work(request, Shuffled(0, losing=3)) as hands:
        shared = sweep(recipe, OVER, device="cpu", workers=3)
    assert points(shared.to_json()) == points(local.to_json())
    assert shared.exit_code == local.exit_code == 2
    assert sum(len(hand.messages) for hand in hands.hired) == 4


def test_a_killed_sweep_goes_on_and_kept_points_are_asked_of_nobody(recipe: Path, local: Sweep, tmp_path: Path) -> None:
    save, saved = PieceStore.save, []

    def killed(self: PieceStore, name: str, piece: object) -> None:
        save(self, name, piece)
        saved.append(name)
        if len(saved) == 2:
            raise KeyboardInterrupt

    with at_work(request, Shuffled(1)), patch.object(PieceStore, "save", killed), pytest.raises(KeyboardInterrupt):
        sweep(recipe, OVER, device="cpu", run=tmp_path / "run", workers=3)
    with at_work(request, Shuffled(2)) as hands:
        shared = sweep(recipe, OVER, device="cpu", run=tmp_path / "run", workers=2)
    assert sum(len(hand.messages) for hand in hands.hired) == 1
    assert points(shared.to_json()) == points(local.to_json())
    with at_work(request, Shuffled(2)) as idle:
        again = sweep(recipe, OVER, device="cpu", run=tmp_path / "run", workers=2)
    assert idle.hired == []
    assert points(again.to_json()) == points(local.to_json())


def test_what_every_point_is_refused_for_is_said_once(recipe: Path) -> None:
    with at_work(request, Shuffled(0)) as hands, pytest.raises(MoeparityError, match="tensor"):
        sweep(recipe, ["placement.tensor=3"], device="cpu", workers=2)
    assert hands.hired == []


def test_users_functions_run_in_workers_that_have_the_same_file(tmp_path: Path) -> None:
    module = tmp_path / "own_of_workers.py"
    module.write_text("def gate(x, *, node):\n    return x @ node.weights['gate.weight'].T\n")
    recipe = write_recipe(tmp_path, "impl", "")
    call = "impl: [{nodes: 'layers[0].moe.gate', call: 'own_of_workers:gate'}]"
    recipe.write_text(recipe.read_text().replace("candidate: {profile", f"candidate: {{{call}, profile"))
    local = sweep(recipe, ["dtype=bf16,fp16"], device="cpu", allow_code=True)
    with at_work(request, Shuffled(0)) as hands:
        shared = sweep(recipe, ["dtype=bf16,fp16"], device="cpu", allow_code=True, workers=2)
    assert points(shared.to_json()) == points(local.to_json())
    assert sum(len(hand.messages) for hand in hands.hired) == 2
    assert shared.points[0].report is not None

    def changed(hand: Hand, message: bytes) -> bytes:
        module.write_text(module.read_text() + "# another\n")
        return hand.server.answer(message)

    with (
        at_work(request, changed),
        pytest.raises(MoeparityError, match="others than where the command runs: own_of_workers:gate"),
    ):
        sweep(recipe, ["dtype=bf16,fp16"], device="cpu", allow_code=True, workers=1)
