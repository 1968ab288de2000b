"""What the benchmark of a baseline counts: the lock's own bytes, and runs that are held to it."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

from benchmarks.baseline import cost
from tests.check.baseline.project import Project


def test_the_cost_is_of_the_lock_that_is_written(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "project")
    costs = cost(project.folder / "a.parity.yaml", project.lock, runs=1)
    data = project.lock.read_bytes()
    assert (costs.lock, costs.packed) == (len(data), len(zlib.compress(data)))
    assert list(json.loads(data)["recipes"]) == ["a.parity.yaml"]
    assert costs.nodes > 10
    assert min(costs.plain, costs.written, costs.held_to_lock) > 0


def test_a_recipe_that_cannot_be_checked_has_no_cost(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere"):
        cost(tmp_path / "nowhere.yaml", tmp_path / "lock.json", runs=1)
