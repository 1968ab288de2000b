"""The way of a first visitor: the README's own commands in their order, in an environment of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'moeparity[test]'")

from benchmarks import first_visit
from benchmarks.first_visit import install_commands, visit
from tests.command import ROOT

README = (ROOT / "README.md").read_text("utf-8")


def test_the_commands_are_those_of_the_readme() -> None:
    torch, install, bisect = install_commands(README)
    assert torch.startswith("pip install 'torch>=")
    assert (install, bisect) == ("pip install -e .", "moeparity bisect recipes/quickstart.yaml")
    assert all(command in README for command in (torch, install, bisect))


def test_a_readme_without_them_is_no_way() -> None:
    with pytest.raises(ValueError, match="under Install"):
        install_commands(README.replace("moeparity bisect", "moeparity show"))


def test_they_are_typed_in_the_clone_and_end_with_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "README.md").write_text(README, "utf-8")
    typed: list[tuple[str, str, tuple[int, ...]]] = []

    def run(words: str, where: Path, variables: Mapping[str, str], right: tuple[int, ...]) -> None:
        typed.append((words.split(maxsplit=1)[0], where.name, right))
        assert variables["PATH"].startswith(str(tmp_path / "venv" / "bin"))
        assert "PYTHONPATH" not in variables
        if words.startswith("git clone"):
            (tmp_path / "moeparity").mkdir()
            (tmp_path / "moeparity" / "README.md").write_text(README, "utf-8")

    opened: list[Path] = []
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    monkeypatch.setattr(first_visit, "_run", run)
    monkeypatch.setattr(first_visit, "_open", opened.append)
    stops = list(visit(source, tmp_path))
    assert [(name, where) for name, where, _ in typed[2:]] == [("pip", "moeparity")] * 2 + [("moeparity", "moeparity")]
    assert [right for *_, right in typed][-1] == (0, 1), "a divergence is no failure"
    assert opened == [tmp_path / "moeparity" / "report.html"]
    assert stops[-2].words == "moeparity bisect recipes/quickstart.yaml --html report.html"


def test_a_command_that_fails_ends_the_way(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        list(visit(tmp_path / "nowhere", tmp_path))
