"""What a folder of evidence is taken for, what is put aside and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from moeparity.doctor.batch import batch
from moeparity.doctor.evidence import find
from moeparity.errors import LogError, MoeparityError
from tests.doctor.programs import QUICKSTART, ROOT, log, tokens

LAUNCHES = ROOT / "tests" / "profiles" / "launch" / "files"


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
    assert [stranger.path.name for stranger in evidence.strangers] == ["README.txt", "metrics.jsonl"]
    assert all(stranger.path.name in stranger.reason for stranger in evidence.strangers)


def test_every_kind_is_found_at_any_depth(folder: Path) -> None:
    run = folder / "job" / "logs"
    run.mkdir(parents=True)
    launch = folder / "job" / "serve.sh"
    launch.write_text((LAUNCHES / "vllm" / "serve.sh").read_text())
    (run / "rank-0.jsonl").write_text('{"event":"start","at":0,"schema":"moeparity.journal/2","rank":0,"ranks":1}\n')
    (run / "s.schedule.jsonl").write_text('{"spans": [[0, 0, 7]]}\n')
    (run / "trace" / "rank-0").mkdir(parents=True)
    (run / "trace" / "rank-0" / "head.json").write_text("{}")
    (run / "held" / "rank-0").mkdir(parents=True)
    (run / "held" / "rank-0" / "weights.safetensors").write_bytes(b"")
    (run / "lora").mkdir()
    (run / "lora" / "adapter_config.json").write_text("{}")
    evidence = find([folder])
    assert evidence.launches == (launch,)
    assert evidence.journals == (run,)
    assert evidence.schedules == (run / "s.schedule.jsonl",)
    assert evidence.traces == (run / "trace",)
    assert evidence.fingerprints == (run / "held",)
    assert evidence.adapter == run / "lora"
    assert evidence.logs == (folder / "log.jsonl",)


def test_what_a_server_wrote_beside_its_arguments_is_no_stranger(folder: Path) -> None:
    (folder / "served").symlink_to(LAUNCHES.parent / "resolved")
    rows = {"requests": ["0-a"], "starts": [0], "tokens": [5], "padding": 0}
    (folder / "vllm-1.rows.jsonl").write_text(json.dumps(rows) + "\n")
    evidence = find([folder])
    assert evidence.launches == (folder / "served" / "vllm-1.json",)
    assert [stranger.path.name for stranger in evidence.strangers] == ["README.txt", "metrics.jsonl"]


def test_what_is_named_is_taken_as_named(folder: Path) -> None:
    evidence = find([folder / "log.jsonl"], folder / "previous", folder / "step-120")
    assert (evidence.checkpoint, evidence.previous) == (folder / "previous", folder / "step-120")
    assert find([folder / "log.jsonl", folder / "step-120"]).previous is None


def test_without_a_log_the_reasons_are_said(folder: Path) -> None:
    with pytest.raises(MoeparityError, match=r"(?s)no log of log-probabilities.*metrics\.jsonl"):
        find([folder / "metrics.jsonl", folder / "step-120"])
    with pytest.raises(MoeparityError, match=r"(?s)no log of log-probabilities.*README\.txt"):
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


def test_one_bad_file_hides_no_good_one(folder: Path) -> None:
    """Empty, cut, binary, of another tool, a folder or a pipe with a log's name, a link to nothing or to itself."""
    whole = (folder / "log.jsonl").read_text()
    (folder / "cut.jsonl").write_text(whole[: len(whole) // 2])
    (folder / "empty.jsonl").write_text("")
    (folder / "empty.yaml").write_text("")
    (folder / "broken.sh").write_text('vllm serve "unfinished\n')
    (folder / "broken.yaml").write_text("a: [1, 2\n")
    (folder / "bytes.pt").write_bytes(bytes(range(256)))
    (folder / "head.safetensors").write_bytes((2**40).to_bytes(8, "little") + b"{")
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "folder.jsonl").mkdir()
    (folder / "dangling.jsonl").symlink_to(folder / "nowhere")
    (folder / "round").symlink_to(folder)
    (folder / "config.json").mkdir()
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "config.json").rmdir()
    evidence = find([folder], folder / "step-120", folder / "previous")
    assert evidence.logs == (folder / "log.jsonl",)
    aside = {stranger.path.name for stranger in evidence.strangers}
    assert {
        *("cut.jsonl", "empty.jsonl", "empty.yaml", "broken.sh", "broken.yaml", "bytes.pt", "head.safetensors"),
        *("deep.json", "dangling.jsonl", "pipe.jsonl"),
    } <= aside
    assert batch(evidence, 3).tokens.input_ids.shape == (3, 8)


def test_a_log_of_another_run_is_put_aside(folder: Path) -> None:
    """Two logs with the same ids: the first is taken, and what to do is said."""
    log(folder / "other.jsonl", tokens(3, 6), -torch.ones(3, 5), None)
    evidence = find([folder])
    assert evidence.logs == (folder / "log.jsonl",)
    reason = next(stranger.reason for stranger in evidence.strangers if stranger.path.name == "other.jsonl")
    assert "log.jsonl" in reason
    assert "--trainer-log" in reason


def test_of_two_logs_of_the_same_sequences_that_of_both_sides_is_taken(folder: Path) -> None:
    log(folder / "a.jsonl", tokens(3, 8), -torch.ones(3, 7), None)
    assert find([folder]).logs == (folder / "log.jsonl",)


def test_of_two_logs_of_the_same_sequences_that_of_a_servers_steps_is_taken(tmp_path: Path) -> None:
    """The server counts sequences, and the program that it answers calls them by names of its own."""
    ids, scores = tokens(3, 8), -torch.ones(3, 7)
    path = log(tmp_path / "outputs.jsonl", ids, scores, None)
    path.write_text(path.read_text().replace('"id": "', '"id": "0/'))
    served = log(tmp_path / "vllm-1.tokens.jsonl", ids, scores, None)
    (tmp_path / "vllm-1.schedule.jsonl").write_text(json.dumps({"spans": [[0, 0, 8], [1, 0, 8], [2, 0, 8]]}) + "\n")
    evidence = find([tmp_path, QUICKSTART])
    assert (evidence.logs, evidence.sequences) == ((served,), 3)
    (reason,) = (stranger.reason for stranger in evidence.strangers)
    assert "its sequences are, under other ids, in" in reason
    path.write_text(path.read_text().replace('"id": "0/', '"id": "'))
    assert find([tmp_path, QUICKSTART]).logs == (served,)


def test_a_log_that_breaks_off_late_is_put_aside_beside_a_whole_one(folder: Path) -> None:
    lines = (folder / "log.jsonl").read_text().splitlines()
    torn = [{**json.loads(line), "id": f"b{number}"} for number, line in enumerate(lines)]
    torn[-1]["input_ids"] = ["?"]
    (folder / "b.jsonl").write_text("".join(json.dumps(record) + "\n" for record in torn))
    evidence = find([folder])
    assert evidence.logs == (folder / "log.jsonl",)
    with pytest.raises(LogError, match=r"b\.jsonl:3"):
        find([folder / "b.jsonl", folder / "step-120"])


def test_mixed_lengths_are_one_batch(folder: Path) -> None:
    log(folder / "longer.jsonl", tokens(3, 12), -torch.ones(3, 11), None)
    text = (folder / "longer.jsonl").read_text().replace('"id": "', '"id": "long-')
    (folder / "longer.jsonl").write_text(text)
    of_both = batch(find([folder]), 64).tokens
    assert of_both.input_ids.shape == (6, 12)
    assert of_both.attention_mask.sum(1).tolist() == [8, 8, 8, 12, 12, 12]


def test_sequences_with_the_same_tokens_are_one(folder: Path) -> None:
    """Whatever was recorded of them; one with another mask is another sequence."""
    ids = torch.arange(16).reshape(2, 8)[[0, 1, 0, 1, 0]]
    path = log(folder / "log.jsonl", ids, -torch.rand(5, 7), None)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    records[4]["mask"][1] = 0
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    of = batch(find([folder]), 64)
    assert of.sequence.tolist() == [
        row for row, count in ((0, 7), (1, 7), (0, 7), (1, 7), (4, 6)) for _ in range(count)
    ]


def test_logs_of_one_side_each_are_joined(folder: Path) -> None:
    ids = tokens(3, 8)
    log(folder / "scored.jsonl", ids, -2 * torch.ones(3, 7), None)
    log(folder / "log.jsonl", ids, -torch.ones(3, 7), None)
    evidence = find([folder], trainer_logs=[folder / "scored.jsonl"])
    joined = batch(evidence, 3).tokens
    assert joined.trainer_logprobs is not None
    assert joined.trainer_logprobs[joined.loss_mask].unique().tolist() == [-2]
