"""What was not compared is never called equal: cut, missing, all-zero, foreign and damaged traces."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from moeparity.errors import TraceError
from moeparity.evidence.diff.run import diff
from tests.evidence.diff.scene import model, record


class _Two(nn.Module):
    def __init__(self, *, zero: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)
        random = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            parameter.data.normal_(generator=random)
        if zero:
            for parameter in self.first.parameters():
                parameter.data.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


X = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))


def _trace(folder: Path, program: nn.Module | None = None, **options: Any) -> Path:
    return record(folder, _Run(program or _Two()), **options)


class _Run(nn.Module):
    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self.program = program

    def forward(self, input_ids: Tensor) -> Tensor:  # noqa: ARG002  the scene's keyword
        return self.program(X)


def _edit(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    events = folder / "rank-0" / "events.jsonl"
    records = [json.loads(line) for line in events.read_text().splitlines()]
    changed_records = [changed for entry in records if (changed := change(entry)) is not None]
    events.write_text("".join(json.dumps(entry) + "\n" for entry in changed_records))


def test_a_trace_that_was_cut_is_inconclusive(tmp_path: Path) -> None:
    a, b = _trace(tmp_path / "a"), _trace(tmp_path / "b")
    _edit(b, lambda entry: None if entry["e"] == "end" else entry)
    report = diff(a, b)
    assert (report.exit_code, report.b.whole) == (3, False)
    assert "B was cut before its program ended" in report.reason


def test_a_trace_without_its_last_modules_is_inconclusive(tmp_path: Path) -> None:
    a, b = _trace(tmp_path / "a", ops=False), _trace(tmp_path / "b", ops=False)
    lost = {"program.second", "program", ""}
    _edit(b, lambda entry: None if entry["e"] == "call" and entry.get("path", "") in lost else entry)
    report = diff(a, b)
    assert report.status == "inconclusive"
    assert f"{report.coverage.uncovered} values not compared" in report.reason


def test_a_capture_that_is_all_zero_on_both_sides_is_inconclusive(tmp_path: Path) -> None:
    a, b = (_trace(tmp_path / name, _Two(zero=True), ops=False) for name in "ab")
    report = diff(a, b)
    assert (report.status, report.coverage.differing) == ("inconclusive", 0)
    assert "all zero in both" in report.reason


def test_digests_of_another_kind_are_not_compared(tmp_path: Path) -> None:
    a = _trace(tmp_path / "a", keep=_none)
    b = _trace(tmp_path / "b", keep=_none)
    head = b / "rank-0" / "head.json"
    head.write_text(head.read_text().replace("keyed64/1", "md5/1"))
    report = diff(a, b)
    assert (report.status, report.coverage.compared) == ("inconclusive", 0)
    assert any("digests of two kinds (keyed64/1 and md5/1)" in sentence for sentence in report.words)


def _none(x: Tensor) -> bool:
    return x.dim() > 9


def test_an_argument_that_differs_without_effect_is_told(tmp_path: Path) -> None:
    a, b = _trace(tmp_path / "a"), _trace(tmp_path / "b")

    def scaled(entry: dict[str, Any]) -> dict[str, Any]:
        return entry | ({"scalars": {"alpha": 2}} if entry.get("name", "").startswith("aten.addmm") else {})

    _edit(b, scaled)
    report = diff(a, b)
    assert (report.status, report.starts) == ("inconclusive", ())
    assert "alpha: not given | 2" in report.reason


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda entry: None if entry["e"] == "value" and entry["id"] == 2 else entry, "names value 2, which is not in"),
        (lambda entry: entry | ({"base": entry["id"]} if entry["e"] == "value" else {}), "is a view of itself"),
        (lambda entry: entry | ({"shape": [-3, 8]} if entry["e"] == "value" else {}), r"of shape \[-3, 8\]"),
        (lambda entry: entry | ({"strides": [1]} if entry["e"] == "value" else {}), "a stride for each axis"),
        (lambda entry: entry | ({"dtype": "load"} if entry["e"] == "value" else {}), "its record says load"),
    ],
)
def test_a_damaged_trace_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    a, b = _trace(tmp_path / "a"), _trace(tmp_path / "b")
    _edit(b, change)
    with pytest.raises(TraceError, match=message):
        diff(a, b)


def test_ranks_that_cannot_be_told_apart_are_refused(tmp_path: Path) -> None:
    a, b = _trace(tmp_path / "a"), _trace(tmp_path / "b")
    _trace(tmp_path / "c", rank=1, ranks=2)
    (tmp_path / "c" / "rank-1").rename(b / "rank-1")
    with pytest.raises(TraceError, match=re.escape("Say with --layout FILE")):
        diff(a, b)


def test_no_report_says_equal_of_a_program_with_fewer_layers(tmp_path: Path) -> None:
    short = model()
    short.layers = short.layers[:2]
    report = diff(record(tmp_path / "a", model(), ops=False), record(tmp_path / "b", short, ops=False))
    assert report.exit_code != 0


@pytest.mark.parametrize("digest", ["0" * 16, "f" * 16])
def test_digests_that_are_none_or_contradict_their_rows_say_nothing(tmp_path: Path, digest: str) -> None:
    """Zeros stand where none was written; anything else that its rows do not bear out is nobody's evidence."""
    a, b = _trace(tmp_path / "a", keep=_none), _trace(tmp_path / "b", keep=_none)
    _edit(b, lambda entry: entry | ({"digest": digest} if "digest" in entry else {}))
    report = diff(a, b)
    if digest.strip("0"):
        assert report.status == "inconclusive"
        assert "contradict each other" in " ".join(report.words)
    else:
        assert report.status == "pass"  # by their rows
    without = _trace(tmp_path / "c", keep=_none), _trace(tmp_path / "d", keep=_none)
    for folder in without:
        _edit(folder, lambda entry: {k: v for k, v in entry.items() if k != "rows"} | _zeros(entry))
    nothing = diff(*without)
    assert (nothing.status, nothing.coverage.compared) == ("inconclusive", 0)


def _zeros(entry: dict[str, Any]) -> dict[str, Any]:
    return {"digest": "0" * 16} if "digest" in entry else {}


def test_calls_that_are_lost_are_a_cut(tmp_path: Path) -> None:
    a, b = _trace(tmp_path / "a"), _trace(tmp_path / "b")
    _edit(b, lambda entry: None if entry["e"] == "call" and entry["id"] == 3 else entry)
    report = diff(a, b)
    assert (report.status, report.b.whole) == ("inconclusive", False)


def test_a_call_that_raised_in_one_trace_is_told(tmp_path: Path) -> None:
    """What it left undone may be seen by nothing that was recorded."""
    a, b = _trace(tmp_path / "a"), _trace(tmp_path / "b")
    _edit(b, lambda entry: entry | ({"flags": ["raised"]} if entry.get("name", "").startswith("aten.addmm") else {}))
    report = diff(a, b)
    assert report.status == "inconclusive"
    assert (
        "a call that returned in one trace only: program.first aten.addmm.default, which raised in B" in report.reason
    )
