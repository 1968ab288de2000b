"""What a file tells by itself: fingerprints, journals and adapters beside a log, examined by the command."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from moeparity.ranks.journal import Journal
from tests.command import alone, inside
from tests.doctor.programs import command, drifted


def fingerprint(checkpoint: Path, file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    done = inside("weights", checkpoint, "--out", file)
    assert done.returncode == 0, done.stderr
    return file


def test_a_fingerprint_names_the_stale_tensors_at_once(
    run_folder: Path, small: Path, small_before: Path, tmp_path: Path
) -> None:
    mixed = drifted(small, tmp_path / "elsewhere" / "mixed", keep=lambda name: "layers.1.self_attn.q_proj" not in name)
    fingerprint(mixed, run_folder / "held" / "rank-0" / "weights.safetensors")
    of = command(
        run_folder / "log.jsonl", run_folder / "held", small, "--previous", small_before, out=tmp_path / "out.json"
    )
    assert (of["answer"], of["exit"], of["tried"]) == ("found", 1, 0)
    assert of["blame"]["named"] == ["stale weights of model.layers.1.self_attn.q_proj.weight"]
    assert of["asks"] == []
    assert (of["records"], of["legal"]) == ([], "nan")
    clue = next(clue for clue in of["clues"] if clue["cause"])
    assert "as they were before the update" in clue["says"]
    done = inside(*shlex.split(clue["command"])[1:])
    assert (done.returncode, "q_proj" in done.stdout) == (1, True)


def test_what_is_not_of_the_update_is_not_called_stale(run_folder: Path, small: Path, tmp_path: Path) -> None:
    mixed = drifted(small, tmp_path / "elsewhere" / "mixed", keep=lambda name: "lm_head" not in name)
    file = fingerprint(mixed, run_folder / "held.safetensors")
    of = command(run_folder / "log.jsonl", file, small, out=tmp_path / "out.json")
    assert of["blame"]["named"] == ["other weights of lm_head.weight"]


def test_equal_bits_and_ranks_in_step_are_told_and_name_nothing(run_folder: Path, small: Path, tmp_path: Path) -> None:
    file = fingerprint(small, run_folder / "held.safetensors")
    for rank in (0, 1):
        journal = Journal(run_folder / "job", rank, 2)
        journal.write("call", call=1, fields={"loss": "a"})
        journal.write("end")
        journal.close()
    of = command(run_folder / "log.jsonl", file, run_folder / "job", small, out=tmp_path / "out.json")
    assert (of["answer"], of["exit"]) == ("noise", 0)
    says = " ".join(clue["says"] for clue in of["clues"])
    assert "held the bits of" in says
    assert "journals of 2 ranks, in step" in says
    assert not any(clue["cause"] for clue in of["clues"])


def test_ranks_out_of_step_are_the_answer(run_folder: Path, small: Path, tmp_path: Path) -> None:
    for rank in (0, 1):
        journal = Journal(run_folder / "job", rank, 2)
        journal.write("call", call=1, fields={"loss": "ab"[rank]})
        journal.close()
    of = command(run_folder, "--checkpoint", small, out=tmp_path / "out.json")
    assert (of["answer"], of["blame"]["named"], of["exit"]) == ("found", ["ranks out of step"], 1)
    assert "call 1" in of["printed"]


def test_journals_alone_answer_without_a_log_or_a_checkpoint(tmp_path: Path) -> None:
    for folder, losses in (("job", "ab"), ("calm", "aa")):
        for rank, loss in enumerate(losses):
            journal = Journal(tmp_path / folder, rank, 2)
            journal.write("call", call=1, fields={"loss": loss})
            journal.close()
    done = alone("doctor", tmp_path / "job")
    assert (done.returncode, done.stderr) == (1, "")
    assert "ranks out of step" in done.stdout
    assert "no log of log-probabilities" in done.stdout
    of = command(tmp_path / "calm", out=tmp_path / "out.json")
    assert (of["answer"], of["exit"], of["blame"]["kind"], of["tokens"]) == ("undecided", 3, "undecided", 0)
    assert of["asks"][0].startswith("a log of log-probabilities")


def test_a_fingerprint_alone_is_held_to_the_checkpoint(small: Path, small_before: Path, tmp_path: Path) -> None:
    file = fingerprint(small_before, tmp_path / "held.safetensors")
    of = command(file, "--checkpoint", small, "--previous", small_before, out=tmp_path / "out.json")
    assert (of["answer"], of["exit"]) == ("found", 1)
    assert of["blame"]["named"][0].startswith("stale weights of")
    done = inside("doctor", file, "--device", "cpu")
    assert (done.returncode, "compare it with as --checkpoint" in " ".join(done.stdout.split())) == (3, True)


@pytest.mark.parametrize("order", [("at-start", "call-9", "call-12"), ("call-12", "call-9")])
def test_of_the_moments_of_a_job_the_last_one_counts(
    run_folder: Path, small: Path, small_before: Path, tmp_path: Path, order: tuple[str, ...]
) -> None:
    """Weights change with every update; those at the start are no fault, and neither are those of an earlier call."""
    for moment in order:
        checkpoint = small if moment == "call-12" else small_before
        fingerprint(checkpoint, run_folder / "job" / "weights" / moment / "rank-0" / "weights.safetensors")
    of = command(run_folder, "--checkpoint", small, out=tmp_path / "out.json")
    assert of["answer"] == "noise"
    assert [clue["says"] for clue in of["clues"] if "call-12" in clue["says"]]


@pytest.mark.parametrize("config", ["{", json.dumps({"peft_type": "LORA", "r": 16, "use_dora": True})])
def test_an_adapter_that_nothing_computes_is_told_of_and_damaged_evidence_hides_nothing(
    config: str, run_folder: Path, small: Path, tmp_path: Path
) -> None:
    (run_folder / "lora").mkdir()
    (run_folder / "lora" / "adapter_config.json").write_text(config)
    (run_folder / "held" / "rank-0").mkdir(parents=True)
    (run_folder / "held" / "rank-0" / "weights.safetensors").write_bytes(b"no safetensors")
    (run_folder / "job").mkdir()
    (run_folder / "job" / "rank-0.jsonl").write_text('{"schema": "moeparity.journal/1"}\n')
    of = command(run_folder, "--checkpoint", small, out=tmp_path / "out.json")
    assert of["answer"] == "noise"
    says = [clue["says"] for clue in of["clues"]]
    assert any("the adapter is not simulated" in sentence and "adapter_config.json" in sentence for sentence in says)
    assert any("fingerprint of weights that can't be used" in sentence for sentence in says)
    assert any("journals that can't be used" in sentence for sentence in says)
