"""What a folder of evidence is taken for, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moeparity.doctor.evidence import batch, find
from moeparity.errors import LogError, MoeparityError
from tests.doctor.programs import QUICKSTART, log, tokens


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A log, two checkpoints, and files of strangers."""
    ids = tokens(3, 8)
    log(tmp_path / "log.jsonl", ids, -torch.ones(3, 7), -torch.ones(3, 7))
    (tmp_path / "previous").symlink_to(QUICKSTART)
    (tmp_path / "step-120").symlink_to(QUICKSTART)
    (tmp_path / "README.txt").write_text("of a stranger")
    (tmp_path / "metrics.jsonl").write_text('{"loss": 1.0}\n')
    (tmp_path / "notes").mkdir()
    return tmp_path


def test_a_folder_is_sorted_by_contents(folder: Path) -> None:
    evidence = find([folder])
    assert evidence.logs == (folder / "log.jsonl",)
    assert evidence.checkpoint == folder / "step-120"
    assert evidence.previous == folder / "previous"
    assert [path.name for path, _ in evidence.strangers] == ["README.txt", "metrics.jsonl"]


def test_what_is_named_is_taken_as_named(folder: Path) -> None:
    evidence = find([folder / "log.jsonl"], folder / "previous", folder / "step-120")
    assert (evidence.checkpoint, evidence.previous) == (folder / "previous", folder / "step-120")
    assert find([folder / "log.jsonl", folder / "step-120"]).previous is None


def test_a_named_file_that_is_no_log_is_refused(folder: Path) -> None:
    with pytest.raises(LogError, match=r"metrics\.jsonl"):
        find([folder / "metrics.jsonl", folder / "step-120"])
    with pytest.raises(LogError, match="no log by its ending"):
        find([folder / "README.txt", folder / "step-120"])


def test_what_is_missing_is_said(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(MoeparityError, match="there is no such file or folder"):
        find([tmp_path / "nothing"])
    with pytest.raises(MoeparityError, match="no checkpoint"):
        find([folder / "log.jsonl"])
    with pytest.raises(MoeparityError, match="no log of log-probabilities"):
        find([folder / "step-120"])


def test_two_checkpoints_are_not_guessed_between(folder: Path) -> None:
    (folder / "step-121").symlink_to(QUICKSTART)
    with pytest.raises(MoeparityError, match="2 checkpoints"):
        find([folder])
    assert find([folder], folder / "step-121").checkpoint == folder / "step-121"


def test_no_more_sequences_are_taken_than_asked_for(folder: Path) -> None:
    assert batch(find([folder]), 2).tokens.input_ids.shape == (2, 8)
