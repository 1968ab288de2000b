"""What is counted of a folder of other people's launch files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import public_launch


def test_each_file_is_counted_by_what_comes_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "serve.sh").write_text("vllm serve m --tensor-parallel-size 2\n", "utf-8")
    (tmp_path / "build.sh").write_text("make all\n", "utf-8")
    (tmp_path / "chart.yaml").write_text("a: {{ b }}: c\n", "utf-8")
    (tmp_path / "roll.yaml").write_text("actor_infer: {strategy_args: {strategy_name: vllm}}\n", "utf-8")
    (tmp_path / "notes.txt").write_text("vllm serve m\n", "utf-8")
    monkeypatch.setattr(sys, "argv", ["public_launch", str(tmp_path), "--refused"])
    assert public_launch.main() == 0
    *refused, counts = capsys.readouterr().out.splitlines()
    assert counts.startswith(f"{tmp_path}: 4 files: 1 read, 1 unknown, 1 unread, 1 refused, 0 failed; 1 as vLLM; ")
    assert [line.split(": ")[0] for line in refused] == ["unknown", "refused", "unread"]


def test_a_traceback_is_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: Path) -> None:
        raise KeyError(path.name)

    (tmp_path / "serve.sh").write_text("vllm serve m\n", "utf-8")
    monkeypatch.setattr(public_launch, "read", broken)
    monkeypatch.setattr(sys, "argv", ["public_launch", str(tmp_path)])
    assert public_launch.main() == 1
    assert "KeyError: 'serve.sh'" in capsys.readouterr().out
