"""Runs and a lock that the version before wrote, of the same schemas: read, printed and held to new ones."""

from __future__ import annotations

import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from moeparity.bisection.report import Report
from moeparity.bisection.resume.codec import Codec, CodecError, classes_of
from moeparity.bisection.runs.results import LATER, read_report
from tests.command import inside
from tests.errors.base import BASE

KEPT = Path(__file__).parent / "kept" / "schema_3.tar.gz"


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bisection, a sweep, flips and mined prompts of tests/bad/base, and a lock, by source ddca13d06f560339."""
    folder = tmp_path_factory.mktemp("kept")
    with tarfile.open(KEPT) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.mark.parametrize("command", ["bisect", "sweep", "flips", "mine"])
def test_a_run_is_read_and_ends_as_it_ended(earlier: Path, command: str) -> None:
    result = read_report(earlier / command)
    done = inside("runs", "show", earlier / command)
    assert done.returncode == result.exit_code
    assert done.stdout.rstrip().endswith(f"exit {result.exit_code}") or command == "bisect"


def test_a_section_that_came_later_is_absent(earlier: Path) -> None:
    report = read_report(earlier / "bisect")
    assert isinstance(report, Report)
    plain, tensors = Codec(classes_of(Report)).encode(report)
    for name in ("digests", "offsets"):
        del plain["fields"][name]
    read = Codec(classes_of(Report), later=LATER).decode(plain, tensors)
    assert read == replace(report, digests=None, offsets=())
    del plain["fields"]["roots"]
    with pytest.raises(CodecError, match="has the fields"):
        Codec(classes_of(Report), later=LATER).decode(plain, tensors)


def test_who_is_to_blame_is_worked_out_of_what_it_holds(earlier: Path) -> None:
    report = read_report(earlier / "bisect")
    assert isinstance(report, Report)
    assert report.blame.kind != "record"
    assert set(report.blame.named) <= {toggle.name for toggle in report.toggles}


def test_it_is_held_to_a_run_of_today(earlier: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(BASE, tmp_path / "base"))
    inside("bisect", place / "recipe.yaml", "--attribute", "--device", "cpu", "--run", tmp_path / "new")
    done = inside("diff", earlier / "bisect", tmp_path / "new")
    assert done.returncode in {0, 1}, done.stderr
    assert "Environment" in done.stdout
    assert "not compared" not in done.stdout
    assert "blame" not in done.stdout


def test_a_lock_is_held_to(earlier: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(BASE, tmp_path / "base"))
    (tmp_path / "lock").mkdir()
    lock = Path(shutil.copy(earlier / "parity.lock.json", tmp_path / "lock"))
    done = inside("check", place / "recipe.yaml", "--baseline", lock, "--device", "cpu")
    assert "kept candidate" in done.stdout
    assert "nothing of" not in done.stderr
