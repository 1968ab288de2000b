"""What a killed run goes on from: passes, and the passes of its searches, in a run's folder and in the cache alike."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from moeparity.bisection.mixtures import Mixtures
from moeparity.bisection.pipeline import bisect
from moeparity.bisection.report import Report
from moeparity.bisection.resume.pieces import PieceStore
from moeparity.bisection.sweep.run import sweep
from tests.errors.base import BASE

LONG = "split: 1\nattribute: true\nby: node\n"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(shutil.copytree(BASE, tmp_path_factory.mktemp("pieces") / "base"))
    with (folder / "recipe.yaml").open("a", encoding="utf-8") as file:
        file.write(LONG)
    return folder / "recipe.yaml"


@pytest.fixture(scope="module")
def whole(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Report]:
    with patch.dict(os.environ, {"MOEPARITY_CACHE": str(tmp_path_factory.mktemp("cache"))}):
        yield bisect(recipe, device="cpu")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Report) -> None:
    monkeypatch.setenv("MOEPARITY_CACHE", str(tmp_path / "cache"))


def stable(text: str) -> Any:
    """A report without what it cost, and the digests that a run in a folder takes."""
    report = json.loads(text)
    for name in ("cost", "digest", "digests"):
        del report[name]
    return report


class Killed(BaseException):
    """Stands for a signal."""


def killed_after(pieces: int) -> Callable[..., None]:
    save, count = PieceStore.save, 0

    def counted(self: PieceStore, name: str, piece: object) -> None:
        nonlocal count
        save(self, name, piece)
        count += 1
        if count == pieces:
            raise Killed

    return counted


@pytest.mark.parametrize("folder", ["run", None])
@pytest.mark.parametrize("pieces", [1, 2])
def test_a_run_killed_in_its_searches_goes_on(
    pieces: int, folder: str | None, recipe: Path, whole: Report, tmp_path: Path
) -> None:
    place = None if folder is None else tmp_path / folder
    with patch.object(PieceStore, "save", killed_after(pieces)), pytest.raises(Killed):
        bisect(recipe, device="cpu", run=place)
    stored_files = list((place or tmp_path / "cache").rglob("*.safetensors"))
    assert len(stored_files) == pieces

    walked: list[int] = []
    evaluate = Mixtures._evaluate

    def counting(self: Mixtures, sides: Any) -> None:
        walked.append(len(sides))
        evaluate(self, sides)

    with patch.object(Mixtures, "_evaluate", counting):
        again = bisect(recipe, device="cpu", run=place)
    assert stable(again.to_json()) == stable(whole.to_json())
    assert whole.attribution is not None
    assert (sum(walked) < whole.attribution.mixtures) == (pieces > 1)
    if place is None:
        assert not list((tmp_path / "cache").rglob("*.safetensors"))
    else:
        (result_file,) = place.rglob("*.safetensors")
        assert result_file.name == "report.safetensors"


def test_a_sweep_goes_on_behind_its_last_point(recipe: Path, tmp_path: Path) -> None:
    over = ["micro_batch=1,2"]
    whole = sweep(recipe, over, device="cpu")
    with patch.object(PieceStore, "save", killed_after(2)), pytest.raises(Killed):
        sweep(recipe, over, device="cpu", run=tmp_path / "run")
    pieces = sorted(path.stem for path in (tmp_path / "run").rglob("*.safetensors"))
    assert pieces == ["report", "report"]
    with patch("moeparity.bisection.pipeline.observe", side_effect=AssertionError):
        again = sweep(recipe, over, device="cpu", run=tmp_path / "run")
    for first_point, second_point in zip(
        json.loads(whole.to_json())["points"], json.loads(again.to_json())["points"], strict=True
    ):
        assert {**first_point, "run": None} == {**second_point, "run": None}
