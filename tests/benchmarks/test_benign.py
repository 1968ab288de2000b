"""Runs in which nothing is wrong: one of each change, asked as the benchmark asks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.explained.benign.__main__ import page
from benchmarks.explained.benign.runs import CHANGES, MODELS, Said, answers_of_run
from tests.hf.reference import load


@pytest.mark.parametrize("turn", range(len(CHANGES)), ids=list(CHANGES))
def test_nobody_is_accused(turn: int, tmp_path: Path, qwen3_moe: Path) -> None:
    program = load(qwen3_moe, "hf-eager", torch.bfloat16)
    answer = answers_of_run(turn * len(MODELS), 1, program, "qwen3_moe", qwen3_moe, tmp_path)
    assert answer.change == list(CHANGES)[turn]
    assert (answer.accused, answer.outside) == ((), False)
    assert answer.nodes > 0
    assert Said.of_json(answer.as_json()) == answer
    assert "accused in 0, outside in 0" in page([answer], "here")
