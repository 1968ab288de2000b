"""A server's recorded steps beside a log: taken where they are of its tokens, and said not to be where they are not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.doctor.programs import command, log


def steps(path: Path, spans: Sequence[Sequence[Sequence[int]]]) -> Path:
    path.write_text("".join(json.dumps({"spans": of_step}) + "\n" for of_step in spans))
    return path


def run(folder: Path, ids: torch.Tensor, scores: torch.Tensor, small: Path) -> dict[str, Any]:
    log(folder / "s.tokens.jsonl", ids, scores, scores)
    return command(folder, "--checkpoint", small, "--sampler", "hf-eager", out=folder.parent / "out.json")


def test_the_sampler_is_simulated_on_its_steps(
    tmp_path: Path, few_ids: torch.Tensor, few_scores: torch.Tensor, small: Path
) -> None:
    """Ten tokens of each prompt at once, then token by token; a copy of the file does no harm."""
    folder = tmp_path / "run"
    folder.mkdir()
    rows = range(len(few_ids))
    decoded = [[[row, place, place + 1] for row in rows] for place in range(10, 15)]
    for name in ("s.schedule.jsonl", "copy.jsonl"):
        steps(folder / name, [[[row, 0, 10] for row in rows], *decoded])
    of = run(folder, few_ids, few_scores, small)
    assert {record["profile"] for record in of["records"]} == {"hf-eager on its recorded steps", "hf-eager"}
    assert any("the sampler is simulated on these" in clue["says"] for clue in of["clues"])
    assert of["answer"] == "noise"


def test_steps_of_other_tokens_are_said_and_not_used(
    tmp_path: Path, few_ids: torch.Tensor, few_scores: torch.Tensor, small: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    steps(folder / "steps.jsonl", [[[0, 0, 400]]])
    of = run(folder, few_ids, few_scores, small)
    (says,) = [clue["says"] for clue in of["clues"]]
    assert "the server's steps are not used" in says
    assert {record["profile"] for record in of["records"]} == {"hf-eager"}
    steps(folder / "others.jsonl", [[[0, 0, 3]]])
    of = run(folder, few_ids, few_scores, small)
    (says,) = [clue["says"] for clue in of["clues"]]
    assert says.startswith("2 recorded schedules")


def test_what_steps_show_is_no_warning_of_a_launch_file(
    tmp_path: Path, few_ids: torch.Tensor, few_scores: torch.Tensor, small: Path
) -> None:
    """Prefix caching and prompts in chunks are in the steps; how keys lie on ranks is not."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "serve.sh").write_text("vllm serve MODEL --enable-prefix-caching --enable-chunked-prefill -dcp 2\n")
    log(folder / "s.tokens.jsonl", few_ids, few_scores, few_scores)
    shown = {"prefix caching", "chunked prefill", "cut along the sequence"}

    def warned() -> set[str]:
        of = command(folder, "--checkpoint", small, out=tmp_path / "out.json")
        says = " ".join(clue["says"] for clue in of["clues"] if clue["says"].startswith("not simulated"))
        return {option for option in shown if option in says}

    assert warned() == shown
    steps(folder / "s.schedule.jsonl", [[[row, 0, few_ids.shape[1]] for row in range(len(few_ids))]])
    assert warned() == {"cut along the sequence"}
