"""Everything that the readers of logs, launch files and schedules refuse, beside a good log: none of it hides that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from moeparity.doctor.evidence import batch, find
from tests.doctor.programs import QUICKSTART, ROOT, command, log, tokens
from tests.logs.broken import FILES, LINES, write


@pytest.fixture
def good(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return log(tmp_path / "run" / "a-good.jsonl", tokens(3, 8), -torch.ones(3, 7), -torch.ones(3, 7))


def test_no_broken_log_hides_a_good_one(good: Path) -> None:
    """Each of the logs that `metrics` is tested with, in a folder of its own beside the good one, all at once."""
    for name, case in LINES.items():
        folder = good.parent / name.replace("/", "-").replace(" ", "-")
        folder.mkdir()
        write(case, folder)
    for name, (make, _) in FILES.items():
        folder = good.parent / f"file-{name.replace('/', '-').replace(' ', '-')}"
        folder.mkdir()
        make(folder)
    evidence = find([good.parent], QUICKSTART)
    assert good in evidence.logs
    assert len(evidence.strangers) > len(LINES) / 2
    assert batch(evidence, 64).tokens.input_ids.shape[0] >= 3


@pytest.mark.parametrize("folder", ["tests/bad", "tests/logs/fixtures", "tests/profiles/launch/files", "docs"])
def test_no_folder_of_strangers_hides_a_good_log(good: Path, folder: str) -> None:
    (good.parent / "strangers").symlink_to(ROOT / folder)
    evidence = find([good.parent], QUICKSTART)
    assert good in evidence.logs
    assert batch(evidence, 64).tokens.input_ids.shape[0] >= 3


def test_contradicting_ids_and_routes_of_another_shape_are_put_aside(good: Path) -> None:
    records = [json.loads(line) for line in good.read_text().splitlines()]
    for letter, top_k in (("b", 2), ("c", 3)):
        routed = [
            {**each, "id": letter + each["id"], "routed_experts": [[[*range(top_k)]]] * len(each["input_ids"])}
            for each in records
        ]
        (good.parent / f"{letter}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in routed))
    shuffled = [{**each, "input_ids": each["input_ids"][::-1]} for each in records]
    (good.parent / "d.jsonl").write_text("".join(json.dumps(each) + "\n" for each in shuffled))
    evidence = find([good.parent], QUICKSTART)
    assert [path.name for path in evidence.logs] == ["a-good.jsonl", "b.jsonl"]
    assert {stranger.path.name: "routes" in stranger.reason for stranger in evidence.strangers} == {
        "c.jsonl": True,
        "d.jsonl": False,
    }
    assert batch(evidence, 64).tokens.input_ids.shape == (6, 8)


def test_the_command_answers_in_such_a_folder(run_folder: Path, small: Path, tmp_path: Path) -> None:
    (run_folder / "empty.jsonl").write_text("")
    (run_folder / "serve.sh").write_text("vllm serve 'unfinished\n")
    (run_folder / "trainer.yaml").write_text("\tnot: yaml\n")
    (run_folder / "steps.jsonl").write_text('{"spans": "none"}\n')
    of = command(run_folder, "--checkpoint", small, out=tmp_path / "out.json")
    assert of["answer"] == "noise"
    assert len(of["aside"]) == 3
    assert any("the server's steps are not used" in clue["says"] for clue in of["clues"])
