"""Settings that launch files show: named where they make the recorded difference, told where they do not."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.doctor.programs import ROOT, command, log, scored

FILES = ROOT / "tests" / "profiles" / "launch" / "files"


def test_a_temperature_that_one_side_divides_by_is_named_with_its_flag(
    tmp_path: Path, few_ids: torch.Tensor, few_scores: torch.Tensor, small: Path
) -> None:
    """verl's trainer divides by 0.7, and the vLLM beside it hands back raw log-probabilities."""
    divided = scored(small, few_ids, 6, temperature=0.7, kernel="eager")
    path = log(tmp_path / "log.jsonl", few_ids, few_scores, divided)
    (tmp_path / "serve.sh").write_text("vllm serve MODEL\n")
    launches = (tmp_path / "serve.sh", FILES / "verl" / "fsdp.sh")
    of = command(path, *launches, small, out=tmp_path / "out.json")
    assert (of["answer"], of["blame"]["named"], of["exit"]) == ("found", ["op log_probs:temperature"], 1)
    assert "processed_logprobs" in of["printed"]


def test_a_setting_that_makes_no_difference_is_told_only(run_folder: Path, small: Path, tmp_path: Path) -> None:
    launches = (FILES / "verl" / "fsdp.sh",)
    of = command(run_folder, *launches, "--checkpoint", small, out=tmp_path / "out.json")
    assert of["answer"] != "found"
    assert [clue for clue in of["clues"] if "log_probs:temperature" in clue["says"]]
