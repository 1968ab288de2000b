"""A real GRPO training of TRL 1.16.0 on this CPU: the hook's file is what it computed, the profiles give its bits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity import logs
from moeparity.bisection.pipeline import bisect
from tests.command import inside
from tests.opened import opened
from tests.real.trl_trainings import CHECKPOINT, Training, recipe, sampled, save, scored, train
from tests.verified import record_plan

pytestmark = pytest.mark.live
LIVE = "TRL 1.16.0 on CPU"
TRAININGS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"model_init_kwargs": {"dtype": "bfloat16"}},
    "autocast": {"bf16": True},
    "temperature": {"temperature": 1.1},
    "pads": {"fault": "pads"},
    "layer": {"fault": "layer"},
    "sampled colder": {"generation_kwargs": {"temperature": 0.6}},
}
"""Weights in fp32 and in bf16, TRL's own default, a temperature whose inverse shows how it is rounded, and faults."""
SIDES = {
    "fp32": ("trl", "fp32", {}),
    "bf16": ("trl", "bf16", {}),
    "autocast": ("trl-autocast-bf16", "fp32", {}),
    "temperature": ("trl", "fp32", {"log_probs:temperature": 1.1}),
}
Trained = Callable[[str], Training]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    trainings: dict[str, Training] = {}

    def of(name: str) -> Training:
        if name not in trainings:
            trainings[name] = train(tmp_path_factory.mktemp("trl"), **TRAININGS[name])
        return trainings[name]

    return of


def test_the_hook_writes_what_the_trainer_computed(trained: Trained) -> None:
    """Every tensor of both generations, bit for bit; ids, masks and pads give the trainer's rows again."""
    training = trained("fp32")
    assert len(training.files) == len(training.answer["batches"]) == 2
    for file, batch, sampler in zip(
        training.files, training.answer["batches"], training.answer["sampled"], strict=True
    ):
        sequences = list(logs.open([file]))
        for row, sequence in enumerate(sequences):
            there = {side: batch[f"{side}_mask"][row].bool() for side in ("prompt", "completion")}
            ids = [batch[f"{side}_ids"][row][there[side]] for side in there]
            assert sequence.pads is not None
            assert sequence.token_ids.equal(torch.cat(ids))
            assert sequence.prompt == len(ids[0])
            assert sequence.mask.tolist() == [False] * len(ids[0]) + [True] * len(ids[1])
            assert sequence.pads.before == int((~there["prompt"]).sum())
            assert sequence.pads.behind == int((~there["completion"]).sum())
            columns = {"old_per_token_logps": sequence.trainer, "sampling_per_token_logps": sequence.rollout}
            for name, written in columns.items():
                assert written is not None
                assert written[sequence.mask].equal(batch[name][row][there["completion"]].double()), name
            assert sampler[row][there["completion"]].equal(batch["sampling_per_token_logps"][row][there["completion"]])
            assert sequence.extra["advantages"][sequence.mask].eq(batch["advantages"][row].double()).all()
        lengths = {(s.prompt, int(s.mask.sum())) for s in sequences}
        assert any(prompt == 1 for prompt, _ in lengths)
        assert any(count == 1 for _, count in lengths)


def test_the_training_goes_on_with_the_same_bits(trained: Trained, tmp_path: Path) -> None:
    """Losses of every micro-batch and the weights in the end, with the hook and without it."""
    plain, hooked = train(tmp_path, hook=False), trained("fp32")
    assert not plain.files
    assert plain.answer["losses"] == hooked.answer["losses"]
    assert len(plain.answer["losses"]) == 12
    first, last = (plain.answer["weights"][which] for which in (0, -1))
    assert any(not first[name].equal(last[name]) for name in last)
    for name, weight in last.items():
        assert weight.equal(hooked.answer["weights"][-1][name]), name


@pytest.mark.parametrize("name", SIDES)
def test_the_trainers_log_probabilities(name: str, trained: Trained) -> None:
    """`old_per_token_logps`, bit for bit; with the inverse of 1.1 rounded otherwise they are others."""
    training, (profile, dtype, choices) = trained(name), SIDES[name]
    batch, model = training.answer["batches"][0], opened(CHECKPOINT)
    real = batch["completion_mask"].bool()
    assert scored(model, training, profile=profile, dtype=dtype, set=choices)[real].equal(
        batch["old_per_token_logps"][real]
    )
    record_plan(model, LIVE, profile=profile, dtype=dtype, settings=choices, blind=("log_probs:block",))
    if choices:
        reciprocal = {**choices, "log_probs:division": "reciprocal"}
        assert not scored(model, training, profile=profile, dtype=dtype, set=reciprocal)[real].equal(
            batch["old_per_token_logps"][real]
        )


@pytest.mark.parametrize(
    ("name", "profile", "dtype"),
    [("fp32", "hf-default", "fp32"), ("bf16", "hf-default", "bf16"), ("autocast", "hf-default-autocast-bf16", "fp32")],
)
def test_the_samplers_log_probabilities(name: str, profile: str, dtype: str, trained: Trained) -> None:
    """Of `generate`, bit for bit. It attends to the pads behind a sequence that is over as to tokens."""
    training = trained(name)
    batch = training.answer["batches"][0]
    real, read = batch["completion_mask"].bool(), training.mask(0)
    read[:, batch["prompt_ids"].shape[1] :] = True
    ours = sampled(opened(CHECKPOINT), training, profile=profile, dtype=dtype, generation=0, read=read)
    assert ours[real].equal(training.answer["sampled"][0][real])


def test_a_recipe_holds_both_sides_to_their_records(trained: Trained, tmp_path: Path) -> None:
    """From the hook's file by way of the command line: the reference is the trainer to the last bit, the candidate the
    sampler.
    """
    (first, _), tokens = trained("autocast").files, tmp_path / "tokens.jsonl"
    done = inside("tokens", first, "--from-log", "--out", tokens)
    assert done.returncode == 0, done.stderr
    assert "pads as the trainer computed them" in done.stdout
    assert "log-probabilities of the trainer for " in done.stdout
    path = recipe(
        tmp_path,
        tokens,
        reference="{profile: trl-autocast-bf16, dtype: fp32, micro_batch: 4}",
        candidate="{profile: hf-default-autocast-bf16, dtype: fp32, schedule: {decode: {from: prompt}}}",
    )
    report = bisect(path, opener=opened)
    (of_trainer,) = [record for record in report.records if record.side == "reference"]
    assert of_trainer.status == "reproduced"
    assert of_trainer.logprobs is not None
    assert of_trainer.logprobs.mean_abs_delta == 0


def test_a_sampler_at_another_temperature_is_named(trained: Trained) -> None:
    """`generation_kwargs` change what is sampled with, and not what the trainer divides by."""
    training = trained("sampled colder")
    done = inside("metrics", *training.files)
    assert "\ncause   temperature (see the diagnosis)\n" in done.stdout
    assert "the log says of the sampler: temperature 0.6" in done.stdout


@pytest.mark.parametrize(
    ("name", "answer", "causes"),
    [
        ("fp32", "noise", []),
        ("bf16", "noise", []),
        ("layer", "named", ["stale weights of layer 1"]),
        ("pads", "named", ["padding-seen"]),
        ("sampled colder", "logged", ["temperature"]),
    ],
)
def test_the_doctor_is_given_the_hooks_file(
    trained: Trained, tmp_path: Path, name: str, answer: str, causes: list[str]
) -> None:
    """Of the second generation, with the weights that it began with and those before the first step."""
    training, dtype = trained(name), torch.bfloat16 if name == "bf16" else torch.float32
    steps = [
        save(weights, tmp_path / f"step-{number}", dtype) for number, weights in enumerate(training.answer["weights"])
    ]
    words: list[str | Path] = ["--checkpoint", steps[1], "--previous", steps[0]]
    words += ["--sampler", "hf-default", "--trainer", "trl", "--json", report := tmp_path / "report.json"]
    inside("doctor", training.files[1], *words)
    of = json.loads(report.read_text("utf-8"))
    assert (of["answer"], of["blame"]["named"]) == (answer, causes)
    if answer == "named":
        assert of["explanations"][0]["party"] == "sampler"


def test_pads_that_generate_reads(trained: Trained, tmp_path: Path) -> None:
    """Sequences without pads in front are as ever, all others are not; with pads as tokens every bit comes back."""
    training = trained("pads")
    sequences = list(logs.open(training.files[:1]))
    for sequence in sequences:
        assert sequence.pads is not None
        assert sequence.rollout is not None
        assert sequence.trainer is not None
        delta = (sequence.rollout - sequence.trainer)[sequence.mask].abs()
        assert (float(delta.max()) > 1e-3) == (sequence.pads.before > 0)
    done = inside("metrics", *training.files, "--by", "pads", "--json", report := tmp_path / "report.json")
    assert done.returncode == 0, done.stderr
    groups = json.loads(report.read_text("utf-8"))["groupings"][0]["groups"]
    assert groups[0]["name"] == "0"
    assert groups[0]["values"]["k3"] < 1e-9
    assert all(group["values"]["k3"] > 1e-3 for group in groups[1:])
    real = training.answer["batches"][0]["completion_mask"].bool()
    read = torch.ones_like(training.mask(0))
    ours = sampled(opened(CHECKPOINT), training, profile="hf-default", dtype="fp32", generation=0, read=read)
    assert ours[real].equal(training.answer["sampled"][0][real])


def test_a_layer_that_is_stale_while_generating(trained: Trained, tmp_path: Path) -> None:
    """The second generation has another layer than the trainer: planted in the candidate, the record comes back."""
    training, tokens = trained("layer"), tmp_path / "tokens.jsonl"
    checkpoint = save(training.answer["weights"][1], tmp_path / "step-2")
    assert inside("tokens", training.files[1], "--from-log", "--out", tokens).returncode == 0
    reference, plain = "{profile: trl, dtype: fp32, micro_batch: 4}", "profile: hf-default, dtype: fp32"
    plain += ", schedule: {decode: {from: prompt}}"
    faults = f"[{{name: weights-of-another-checkpoint, layers: [1], values: {{checkpoint: {CHECKPOINT}}}}}]"
    without, planted = (
        bisect(recipe(tmp_path, tokens, reference=reference, candidate=candidate, checkpoint=checkpoint), opener=opened)
        for candidate in (f"{{{plain}}}", f"{{{plain}, faults: {faults}}}")
    )
    assert without.record.status == "not reproduced"
    assert planted.record.status == "reproduced"
