"""What options of the command line are under a recipe's `schedule:`, and what a command sets for itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from moeparity.cli.options import scheduling
from moeparity.errors import MoeparityError, Where
from moeparity.plan.schedule.settings import described, settings
from moeparity.plan.spec import reader
from tests.command import alone

FILE = Path("batches.jsonl")


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ((None, None, 4), None),
        ((20, None, None), {"decode": {"from": 20, "batch": "all"}}),
        ((20, None, 4), {"decode": {"from": 20, "batch": {"fixed": 4}}}),
        ((None, FILE, None), {"file": "batches.jsonl"}),
    ],
)
def test_scheduling(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[int | None, Path | None, int | None],
    fields: dict[str, Any] | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    FILE.touch()
    assert scheduling(*options) == fields


def test_decode_from_is_a_schedule() -> None:
    fields, where = scheduling(20, None, 4), Where(Path("forward"))
    assert fields is not None
    by = settings(reader.read_scheduling(fields, where), None, 8, where)
    assert described(by) == "transformers, 4 together, decode from token 20"


@pytest.mark.parametrize("options", [(20, FILE, None), (None, FILE, 4)])
def test_two_schedules_are_refused(options: tuple[int | None, Path, int | None]) -> None:
    option = "--decode-from" if options[0] else "--micro-batch"
    with pytest.raises(MoeparityError, match=f"^--schedule batches.jsonl: .*, and so does {option}. Give one of them"):
        scheduling(*options)


def test_a_schedule_that_no_file_can_be_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("nowhere.jsonl", "n" * 5000, "recipe.yaml/x"):
        with pytest.raises(MoeparityError, match="does not exist"):
            scheduling(None, Path(name), None)
    Path("circle").symlink_to("circle")
    assert scheduling(None, Path("circle"), None) == {"file": "circle"}


WAITS = "import os; print(os.environ.get('OMP_WAIT_POLICY'))"


def test_threads_wait_without_spinning_but_in_a_captured_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where another process has a core, threads that spin make a bisection forty times as long."""
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    (tmp_path / "own.py").write_text(f"{WAITS}\ndef total(values):\n    return values.sum()\n", "utf-8")
    probed = alone("kernel", "probe", "own:total", "--n", "4", cwd=tmp_path)
    assert "passive" in probed.stdout.split(), probed.stderr
    captured = alone("capture", "--out", "trace", "--", sys.executable, "-c", WAITS, cwd=tmp_path)
    assert "None" in captured.stdout.split(), captured.stderr
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert "active" in alone("kernel", "probe", "own:total", "--n", "4", cwd=tmp_path).stdout.split()
