"""Evidence that transformers left, with a fault planted in one of two models of it, examined by the command."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.doctor.case import drawn
from moeparity.cli.schemas import report_schema
from moeparity.doctor import examine as examining
from moeparity.doctor.case import DoctorRequest
from moeparity.doctor.examine import examine
from moeparity.logs.diagnosis.finding import Diagnosis, Finding
from moeparity.progress import Progress, Stop
from tests.command import inside
from tests.doctor.faulty import (
    cut_to,
    decoded_otherwise,
    dropping,
    older_prompt,
    packed,
    renormalised,
    tied,
    without_first,
)
from tests.doctor.programs import command, drifted, log, scored, tokens, two_layers


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    return tokens(24, 24)


@pytest.fixture(scope="module")
def current(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights that both sides were to have."""
    return two_layers(tmp_path_factory.mktemp("weights") / "current")


@pytest.fixture(scope="module")
def right(current: Path, ids: torch.Tensor) -> torch.Tensor:
    """What the trainer says, without a fault."""
    return scored(current, ids, 4)


@pytest.fixture(scope="module")
def previous(current: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drifted(current, tmp_path_factory.mktemp("weights") / "previous")


def examined(folder: Path, current: Path, previous: Path | None, *options: str) -> dict[str, Any]:
    """The JSON of an examination by the command, with its exit code."""
    further: list[str | Path] = [*options]
    if previous is not None:
        further += ["--previous", previous]
    weights: list[str | Path] = ["--checkpoint", current, "--device", "cpu"]
    done = inside(
        "doctor", folder / "log.jsonl", *weights, "--sampler", "hf-eager", "--json", folder / "out.json", *further
    )
    assert done.returncode in {0, 1, 3}, done.stderr
    report: dict[str, Any] = json.loads((folder / "out.json").read_text())
    jsonschema.validate(report, report_schema("examination"))
    assert done.stdout.startswith({0: "PASS", 1: "FAIL", 3: "INCONCLUSIVE"}[done.returncode])
    return {**report, "exit": done.returncode, "printed": done.stdout}


@pytest.mark.parametrize(
    ("stale", "cause"),
    [
        (".layers.1.", "stale weights of layer 1"),
        (".layers.1.mlp.experts.", "stale weights of layers[1].moe.experts"),
        ("lm_head.", "stale weights of lm_head"),
        (".self_attn.", "stale weights of attention of all layers"),
    ],
)
def test_stale_weights_of_the_sampler_are_named(
    tmp_path: Path, current: Path, ids: torch.Tensor, right: torch.Tensor, previous: Path, stale: str, cause: str
) -> None:
    mixed = drifted(current, tmp_path / "mixed", keep=lambda name: stale not in name)
    log(tmp_path / "log.jsonl", ids, scored(mixed, ids, 1), right)
    of = examined(tmp_path, current, previous)
    assert (of["answer"], of["blame"]["named"], of["exit"]) == ("named", [cause], 1)
    first = of["explanations"][0]
    assert (first["name"], first["party"]) == (cause, "sampler")
    assert first["slope"]["low"] < 1 < first["slope"]["high"]
    assert of["rivals"] == []


def test_the_trainer_is_named_where_it_is_stale(
    tmp_path: Path, current: Path, ids: torch.Tensor, right: torch.Tensor, previous: Path
) -> None:
    mixed = drifted(current, tmp_path / "mixed", keep=lambda name: ".layers.0." not in name)
    log(tmp_path / "log.jsonl", ids, right, scored(mixed, ids, 1))
    of = examined(tmp_path, current, previous)
    assert (of["answer"], of["blame"]["named"]) == ("named", ["stale weights of layer 0"])
    assert of["explanations"][0]["party"] == "trainer"


def test_other_batches_of_a_right_program_are_noise(
    tmp_path: Path, current: Path, ids: torch.Tensor, right: torch.Tensor, previous: Path
) -> None:
    log(tmp_path / "log.jsonl", ids, scored(current, ids, 1), right)
    of = examined(tmp_path, current, previous)
    assert (of["answer"], of["blame"]["kind"], of["exit"]) == ("noise", "nobody", 0)
    assert all(each["recorded"] <= each["bound"] for each in of["noise"]["statistics"])


def test_a_sampler_alone_is_held_to_the_simulated_trainer(
    tmp_path: Path, current: Path, ids: torch.Tensor, previous: Path
) -> None:
    mixed = drifted(current, tmp_path / "mixed", keep=lambda name: ".layers.1." not in name)
    log(tmp_path / "log.jsonl", ids, scored(mixed, ids, 1), None)
    of = examined(tmp_path, current, previous)
    assert (of["answer"], of["blame"]["named"]) == ("named", ["stale weights of layer 1"])
    assert [record["party"] for record in of["records"]] == ["sampler"]


def test_weights_before_the_update_must_fit(
    tmp_path: Path, current: Path, ids: torch.Tensor, right: torch.Tensor
) -> None:
    log(tmp_path / "log.jsonl", ids, right, right)
    arguments = ("doctor", tmp_path / "log.jsonl", "--checkpoint", current, "--device", "cpu", "--previous")
    done = inside(*arguments, current)
    assert (done.returncode, "earlier step" in done.stderr) == (2, True)
    one_layer = drifted(current, tmp_path / "previous")
    whole = (one_layer / "model.safetensors").rename(one_layer / "whole")
    save_file({n: w for n, w in load_file(whole).items() if ".layers.1." not in n}, one_layer / "model.safetensors")
    done = inside(*arguments, one_layer)
    assert (done.returncode, "layers.1" in done.stderr) == (2, True)


def test_weights_of_neither_side_are_said_first(
    tmp_path: Path, current: Path, ids: torch.Tensor, previous: Path
) -> None:
    log(tmp_path / "log.jsonl", ids, scored(previous, ids, 1), scored(previous, ids, 4))
    of = examined(tmp_path, current, None)
    assert (of["answer"], of["exit"], of["tried"]) == ("wrong checkpoint", 1, 1)


def test_what_the_log_alone_names_is_not_simulated(
    tmp_path: Path, current: Path, ids: torch.Tensor, right: torch.Tensor
) -> None:
    log(tmp_path / "log.jsonl", ids, scored(current, ids, 1, temperature=0.6), right)
    of = examined(tmp_path, current, None)
    assert (of["answer"], of["tried"]) == ("logged", 1)
    assert of["logged"]
    of = examined(tmp_path, current, None, "--all")
    assert of["tried"] > 1
    assert of["blame"]["named"][0].startswith("temperature-in-the-head(temperature=0.6")


def test_sides_that_hardly_go_together_are_simulated(
    tmp_path: Path, current: Path, ids: torch.Tensor, right: torch.Tensor
) -> None:
    """The log shows that the sides are unrelated, which is no cause: the head has the weights of the embedding."""
    log(tmp_path / "log.jsonl", ids, scored(current, ids, 1, patch=tied), right)
    of = examined(tmp_path, current, None)
    assert (of["answer"], of["blame"]["named"]) == ("named", ["head-tied"])
    assert any("hardly depend on each other" in clue["says"] for clue in of["clues"])


@pytest.mark.parametrize("name", ["unrelated", "E[rho]"])
def test_what_a_log_only_shows_is_no_cause(
    run_folder: Path, small: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The diagnosis of a log may name these where it finds no cause."""
    symptom = Finding(tier="semantics", name=name, verdict="named", reason="It shows.")
    diagnosis = Diagnosis(sequences=6, tokens=90, stale=0, unsaid=0, declared=(), findings=(symptom,), next=())
    monkeypatch.setattr(examining, "measure_files", lambda *_: SimpleNamespace(diagnosis=diagnosis))
    of = examining.examine(DoctorRequest(evidence=(run_folder / "log.jsonl",), checkpoint=small, sampler="hf-eager"))
    assert (of.answer, of.logged) == ("noise", ())
    assert "It shows." in [clue.says for clue in of.clues]


def test_a_token_that_has_most_of_a_legal_difference_is_noise(
    tmp_path: Path, current: Path, ids: torch.Tensor, right: torch.Tensor
) -> None:
    """A flip makes one token as far off as legal arithmetic may: no share of such a difference has a bound."""
    sampler = right + 1e-3 * torch.randn(right.shape, generator=torch.Generator().manual_seed(0))
    sampler[3, 7] += 0.1
    log(tmp_path / "log.jsonl", ids, sampler, right)
    of = examined(tmp_path, current, None)
    assert (of["answer"], of["exit"]) == ("noise", 0)


def test_a_stated_temperature_is_simulated_on_both_sides(tmp_path: Path, current: Path, ids: torch.Tensor) -> None:
    sides = (scored(current, ids, batch, temperature=0.7) for batch in (1, 4))
    stated = {"temperature": 0.7, "logprobs_mode": "processed"}
    log(tmp_path / "log.jsonl", ids, *sides, sampling_params=stated)
    of = examined(tmp_path, current, None)
    assert of["answer"] == "noise"
    assert all(record["mean_abs_delta"]["high"] < 2 * of["legal"] for record in of["records"])
    log(tmp_path / "log.jsonl", ids, *(scored(current, ids, batch, temperature=0.7) for batch in (1, 4)))
    assert examined(tmp_path, current, None)["answer"] == "wrong checkpoint"


def test_a_mistake_in_the_model_code_is_named_without_an_earlier_checkpoint(
    tmp_path: Path, current: Path, ids: torch.Tensor, right: torch.Tensor
) -> None:
    log(tmp_path / "log.jsonl", ids, scored(current, ids, 1, patch=renormalised), right)
    of = examined(tmp_path, current, None)
    assert (of["answer"], of["blame"]["named"]) == ("named", ["renormalisation"])


def test_a_number_is_solved_for_and_what_comes_to_the_same_is_told(
    tmp_path: Path, current: Path, ids: torch.Tensor, right: torch.Tensor
) -> None:
    def sharper(model: Any) -> None:
        for layer in model.model.layers:
            layer.self_attn.scaling *= 1.3

    log(tmp_path / "log.jsonl", ids, right, scored(current, ids, 1, patch=sharper))
    of = examined(tmp_path, current, None)
    assert (of["answer"], of["blame"]["named"]) == ("named", ["softmax-scale(factor=1.3)"])
    first = of["explanations"][0]
    assert first["party"] == "trainer"
    assert 1.27 < first["number"]["low"] < 1.3 < first["number"]["high"] < 1.33
    assert any("attention.q_norm" in name for name in first["alike"])
    assert "attention.q_norm" in of["parting"][0]
    assert "these log-probabilities do not tell them apart" in " ".join(of["printed"].split())


def test_a_number_that_is_wrong_in_one_layer_is_named_there(
    tmp_path: Path, current: Path, ids: torch.Tensor, right: torch.Tensor
) -> None:
    def sharper_in_one_layer(model: Any) -> None:
        model.model.layers[1].self_attn.scaling *= 1.4

    log(tmp_path / "log.jsonl", ids, scored(current, ids, 1, patch=sharper_in_one_layer), right)
    of = examined(tmp_path, current, None)
    assert (of["answer"], of["blame"]["named"]) == (
        "named",
        ["softmax-scale(factor=1.4) of layers[1].attention.attend"],
    )
    number = of["explanations"][0]["number"]
    assert 1.3 < number["low"] < 1.4 < number["high"] < 1.6


def test_fewer_experts_for_each_token_are_named(
    tmp_path: Path, current: Path, ids: torch.Tensor, right: torch.Tensor
) -> None:
    def one_less(model: Any) -> None:
        for layer in model.model.layers:
            layer.mlp.gate.top_k -= 1

    log(tmp_path / "log.jsonl", ids, scored(current, ids, 1, patch=one_less), right)
    of = examined(tmp_path, current, None)
    assert (of["answer"], of["blame"]["named"]) == ("named", ["experts-per-token(count=5)"])


def test_tokens_that_experts_dropped_are_named(
    tmp_path: Path, current: Path, ids: torch.Tensor, right: torch.Tensor
) -> None:
    log(tmp_path / "log.jsonl", ids, scored(current, ids, 1, patch=dropping(8)), right)
    of = examined(tmp_path, current, None)
    assert (of["answer"], of["blame"]["named"]) == ("named", ["capacity-drop(capacity=8)"])


def test_a_mistake_in_decoding_alone_is_named_so(
    tmp_path: Path, current: Path, ids: torch.Tensor, right: torch.Tensor
) -> None:
    """The prompt is right, and its keys and values are; the response is computed behind them with another router."""
    log(tmp_path / "log.jsonl", ids, decoded_otherwise(current, ids, 8, renormalised), right, prompt=8)
    of = examined(tmp_path, current, None)
    assert (of["answer"], of["blame"]["named"]) == ("named", ["renormalisation in decoding alone"])


def test_sequences_that_see_each_other_are_named(
    tmp_path: Path, current: Path, ids: torch.Tensor, right: torch.Tensor
) -> None:
    log(tmp_path / "log.jsonl", ids, packed(current, ids, 2), right)
    of = examined(tmp_path, current, None)
    assert (of["answer"], of["blame"]["named"]) == (
        "named",
        ["packing without its mask, positions running, 2 sequences"],
    )


def test_few_sequences_that_see_each_other_are_named(
    tmp_path: Path, current: Path, ids: torch.Tensor, right: torch.Tensor
) -> None:
    """Of two sequences that are off no average has bounds; that nothing beyond noise is left tells it."""
    log(tmp_path / "log.jsonl", ids[4:8], packed(current, ids[4:8], 2), right[4:8])
    of = examined(tmp_path, current, None)
    names = [*of["blame"]["named"], *of["explanations"][0]["alike"]]
    assert (of["answer"], of["two"]) == ("named", None)
    assert "packing without its mask, positions running, 2 sequences" in names


@pytest.mark.parametrize(
    "fault",
    [
        "first 2 tokens missing",
        "first 3 tokens missing",
        "prompt computed with older weights",
        "first 12 tokens computed with older weights",
        "top_k=10",
    ],
)
def test_tokens_that_a_side_read_otherwise_are_named(
    tmp_path: Path, current: Path, ids: torch.Tensor, right: torch.Tensor, previous: Path, fault: str
) -> None:
    values = {
        "first 2 tokens missing": lambda: without_first(current, ids, 2),
        "first 3 tokens missing": lambda: without_first(current, ids, 3),
        "prompt computed with older weights": lambda: older_prompt(current, previous, ids, 8),
        "first 12 tokens computed with older weights": lambda: older_prompt(current, previous, ids, 12),
        "top_k=10": lambda: cut_to(current, ids, 10),
    }[fault]()
    # Three are more than the log says is prompt.
    prompt = 1 if fault == "first 3 tokens missing" else 8
    log(tmp_path / "log.jsonl", ids, values, None if fault == "top_k=10" else right, prompt=prompt)
    of = examined(tmp_path, current, previous)
    assert (of["answer"], of["blame"]["named"]) == ("named", [fault])


def test_all_that_comes_to_the_same_in_a_layer_is_told(
    tmp_path: Path, current: Path, ids: torch.Tensor, right: torch.Tensor
) -> None:
    """A softmax scale in one layer is a norm's weight there, and looks like neither in all layers. A synonym's own
    number is fitted, so it may be a few percent off.
    """

    def sharper(model: Any) -> None:
        model.model.layers[1].self_attn.scaling *= 1.6

    log(tmp_path / "log.jsonl", ids, scored(current, ids, 1, patch=sharper), right)
    of = examined(tmp_path, current, None)
    causes = [*of["blame"]["named"], *of["blame"]["alternatives"]]
    factors = {
        re.sub(r"factor=[\d.]+", "factor", name): float(re.findall(r"factor=([\d.]+)", name)[0]) for name in causes
    }
    scaled = {f"weights-scaled(factor) of layers[1].attention.{norm}" for norm in ("q_norm", "k_norm")}
    assert of["answer"] == "named"
    assert factors.keys() >= {*scaled, "softmax-scale(factor) of layers[1].attention.attend"}
    assert all(abs(factor / 1.6 - 1) < 0.05 for factor in factors.values())


def test_two_faults_are_both_named_with_their_sides(
    tmp_path: Path, current: Path, ids: torch.Tensor, previous: Path
) -> None:
    mixed = drifted(current, tmp_path / "mixed", keep=lambda name: ".layers.1." not in name)
    log(tmp_path / "log.jsonl", ids, scored(mixed, ids, 1), scored(current, ids, 4, patch=renormalised))
    of = examined(tmp_path, current, previous)
    assert of["answer"] == "named"
    causes = {(each["name"], each["party"]) for each in of["two"]["causes"]}
    assert causes == {("stale weights of layer 1", "sampler"), ("renormalisation", "trainer")}
    assert of["blame"]["kind"] == "culprits"


def test_two_faults_at_one_node_are_both_named(
    tmp_path: Path, current: Path, ids: torch.Tensor, right: torch.Tensor, previous: Path
) -> None:
    """Stale experts, with gate and up exchanged in one layer: both make other values there than their sum."""

    def exchanged(model: Any) -> None:
        weight = model.model.layers[1].mlp.experts.gate_up_proj
        weight.data = torch.cat(tuple(reversed(weight.data.chunk(2, 1))), 1)

    mixed = drifted(current, tmp_path / "mixed", keep=lambda name: ".mlp.experts." not in name)
    log(tmp_path / "log.jsonl", ids, right, scored(mixed, ids, 4, patch=exchanged))
    of = examined(tmp_path, current, previous)
    causes = {(each["name"], each["party"]) for each in of["two"]["causes"]}
    names = {"stale weights of routed experts of all layers", "gate-and-up-exchanged of layers[1].moe.experts"}
    assert causes == {(name, "trainer") for name in names}
    assert all(each["share"]["low"] > 0 for each in of["two"]["causes"])


def test_an_examination_that_is_stopped_tells_the_best_so_far(
    tmp_path: Path, current: Path, ids: torch.Tensor, right: torch.Tensor, previous: Path
) -> None:
    """It settles nothing, however much the best one explains: what did not run may explain as much."""
    mixed = drifted(current, tmp_path / "mixed", keep=lambda name: ".layers.1." not in name)
    path = log(tmp_path / "log.jsonl", ids, scored(mixed, ids, 1), right)
    stop, done = Stop(), [0]

    def asks_in_the_third_pass(progress: Progress) -> None:
        if progress.step == "pass":
            done.append(progress.done)
        stop.is_asked = sum(later < earlier for earlier, later in pairwise(done)) >= 2

    request = DoctorRequest(evidence=(path,), checkpoint=current, previous=previous, sampler="hf-eager")
    of = examine(request, asks_in_the_third_pass, stop)
    assert (of.answer, of.is_stopped, of.blame.named, of.exit_code) == ("undecided", True, (), 3)
    assert (of.explanations[0].name, of.explanations[0].party) == ("stale weights of layer 1", "sampler")
    assert "did not run" in of.asks[0]


def test_code_that_looks_like_a_truncation_in_the_log_is_named(tmp_path: Path) -> None:
    """A DeepSeek-V3 without its final norm, of which the log by itself says `raw log-probs (truncation)`."""
    case = drawn(tmp_path, 20261130, 331)
    of = examine(case.request())
    assert case.facts["truth"] == ("norm-missing of norm",)
    assert (of.answer, of.blame.named, of.logged) == ("named", ("norm-missing of norm",), ())


def test_how_long_it_would_take(run_folder: Path, small: Path) -> None:
    done = inside("doctor", run_folder, "--checkpoint", small, "--dry-run")
    assert done.returncode == 0
    first, most = (
        int(number.replace(",", "")) for number in re.findall(r"([\d,]+) hypotheses.*up to ([\d,]+)", done.stdout)[0]
    )
    assert 12 * first == most > 0
    refused = inside("doctor", run_folder, "--checkpoint", small, "--dry-run", "--json", run_folder / "out.json")
    assert (refused.returncode, "--dry-run makes no report for --json" in refused.stderr) == (2, True)
    assert "if nothing does" in done.stdout


def test_an_examination_that_has_no_time_says_so(run_folder: Path, small: Path) -> None:
    ids = tokens(6, 16)
    log(run_folder / "log.jsonl", ids, scored(small, ids, 1), scored(small, ids, 6) * 1.5)
    done = inside("doctor", run_folder, "--checkpoint", small, "--seconds", "0", "--all")
    assert done.returncode == 3
    assert "stopped before its end" in done.stdout


def test_rounding_in_one_sequence_alone_is_noise(tmp_path: Path, small: Path) -> None:
    """A mean that one of six sequences carries has no bound; all statistics lie inside those of noise."""
    ids = tokens(6, 16)
    right, rounded_otherwise = scored(small, ids, 6), scored(small, ids, 1, kernel="eager", experts="eager")
    sampler = right.clone()
    sampler[2] = rounded_otherwise[2]
    path = log(tmp_path / "log.jsonl", ids, sampler, right)
    of = command(path, small, "--sampler", "hf-eager", out=tmp_path / "out.json")
    assert sampler.ne(right).any()
    assert of["answer"] == "noise"


def test_copies_of_one_sequence_name_no_cause(
    tmp_path: Path, current: Path, ids: torch.Tensor, right: torch.Tensor, previous: Path
) -> None:
    """Their differences are those of one sequence, which says nothing about others."""
    mixed = drifted(current, tmp_path / "mixed", keep=lambda name: ".layers.1." not in name)
    copies = ids[:1].expand(16, -1)
    log(tmp_path / "log.jsonl", copies, scored(mixed, ids[:1], 1).expand(16, -1), right[:1].expand(16, -1))
    of = examined(tmp_path, current, previous)
    assert of["blame"]["named"] == []
    assert of["sequences"] == 1


def test_a_fault_that_no_file_lists_is_not_given_the_nearest_name(
    tmp_path: Path, current: Path, ids: torch.Tensor, right: torch.Tensor, previous: Path
) -> None:
    def another_activation(model: Any) -> None:
        for layer in model.model.layers:
            layer.mlp.experts.act_fn = torch.nn.GELU()

    log(tmp_path / "log.jsonl", ids, scored(current, ids, 1, patch=another_activation), right)
    of = examined(tmp_path, current, previous)
    assert of["answer"] in {"not explained", "undecided"}
    assert of["blame"]["named"] == []
    assert of["asks"]


def test_what_has_the_same_bits_is_told_beside_the_name(small: Path, tmp_path: Path) -> None:
    """Without keys attention looks everywhere alike, as without queries."""
    ids = tokens(8, 24)

    def without_keys(model: Any) -> None:
        model.model.layers[0].self_attn.k_proj.weight.data.zero_()

    path = log(tmp_path / "log.jsonl", ids, scored(small, ids, 4, patch=without_keys), scored(small, ids, 8))
    of = command(path, small, "--sampler", "hf-eager", out=tmp_path / "out.json")
    names = [*of["blame"]["named"], *of["blame"]["alternatives"]]
    assert {f"weights-zeroed of layers[0].attention.{node}" for node in ("q_proj", "k_proj")} <= {*names}
