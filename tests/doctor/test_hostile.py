"""Everything that the readers of logs, launch files and schedules refuse, beside a good log: none of it hides that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from moeparity.doctor.batch import batch
from moeparity.doctor.evidence import find
from tests.command import alone, inside
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


def test_tokens_of_another_vocabulary_are_put_aside_beside_a_good_log(run_folder: Path, small: Path) -> None:
    """Alone they are an error, which says where, what was given, what was expected and what to do."""
    records = [json.loads(line) for line in (run_folder / "log.jsonl").read_text().splitlines()]
    strange = [{**each, "id": f"z{each['id']}", "input_ids": [*each["input_ids"][:-1], 99_999]} for each in records]
    path = run_folder / "z.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in strange))
    done = alone("doctor", run_folder, "--checkpoint", small, "--device", "cpu")
    printed = " ".join(done.stdout.split())
    assert (done.returncode, done.stderr) == (0, "")
    assert f"not used: {path}:1: sequence z0 holds the token id 99999; expected ids of the vocabulary" in printed
    assert "90 tokens of 6 sequences" in printed
    done = alone("doctor", path, "--checkpoint", small, "--device", "cpu")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {path}:1: sequence z0 holds the token id 99999; expected ids of the voc")
    assert "0..255. Give the log of a run of this model, or that run's weights as --checkpoint." in done.stderr


def test_a_bad_log_is_put_aside_where_the_trainer_has_a_log_of_its_own_too(run_folder: Path, small: Path) -> None:
    (run_folder / "torn.jsonl").write_text((run_folder / "log.jsonl").read_text()[:300])
    (run_folder / "trainer.jsonl").write_text((run_folder / "log.jsonl").read_text())
    trainer = ("--trainer-log", run_folder / "trainer.jsonl")
    done = inside("doctor", run_folder, "--checkpoint", small, "--device", "cpu", *trainer)
    assert (done.returncode, done.stderr) == (0, "")
    assert "torn.jsonl:1: the last line stops" in " ".join(done.stdout.split())


def test_sequences_that_are_not_simulated_are_said(run_folder: Path, small: Path) -> None:
    """Sequences beyond --sequences, those that only one log has, and those without a scored token."""
    records = [json.loads(line) for line in (run_folder / "log.jsonl").read_text().splitlines()]
    records[0]["mask"] = [0] * 16
    (run_folder / "log.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    (run_folder / "trainer.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records[:5]))
    trainer = ("--trainer-log", run_folder / "trainer.jsonl")
    arguments = ("doctor", run_folder, "--checkpoint", small, "--device", "cpu")
    for further, count in ((trainer, 4), (("--sequences", "2"), 2), ((), 5)):
        done = inside(*arguments, *further)
        assert done.returncode == 0, done.stderr
        assert f"{count} of 6 sequences, the first that every side scored" in " ".join(done.stdout.split())


def test_one_token_gives_no_name_and_more_sequences_are_asked_for_first(run_folder: Path, small: Path) -> None:
    record = json.loads((run_folder / "log.jsonl").read_text().splitlines()[0])
    short = {name: value[:2] if isinstance(value, list) else value for name, value in record.items()}
    short["logprobs"] = [None, short["trainer_logprobs"][1] - 0.3]
    (run_folder / "log.jsonl").write_text(json.dumps(short) + "\n")
    of = command(run_folder, "--checkpoint", small, out=run_folder / "out.json")
    assert (of["answer"], of["tokens"], of["blame"]["named"]) == ("undecided", 1, [])
    assert of["asks"][0].startswith("more sequences")


def test_the_command_answers_in_such_a_folder(run_folder: Path, small: Path, tmp_path: Path) -> None:
    (run_folder / "empty.jsonl").write_text("")
    (run_folder / "serve.sh").write_text("vllm serve 'unfinished\n")
    (run_folder / "trainer.yaml").write_text("\tnot: yaml\n")
    (run_folder / "steps.jsonl").write_text('{"spans": "none"}\n')
    of = command(run_folder, "--checkpoint", small, out=tmp_path / "out.json")
    assert of["answer"] == "noise"
    assert len(of["aside"]) == 3
    assert any("the server's steps are not used" in clue["says"] for clue in of["clues"])
