"""Planted faults are named, and nothing is on clean logs: a quick subset of benchmarks/semantics.py, and its edges."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch

from benchmarks.language import NOISES, STYLES, Setting, Side, log
from benchmarks.semantics import CASES, Case, named_causes, outcome
from moeparity.logs.diagnosis import Diagnosis, Observer
from moeparity.logs.diagnosis.intervals import bounds
from moeparity.logs.diagnosis.show import diagnosis_lines
from moeparity.logs.record import Sampling, Sequence
from moeparity.metrics.chunk import Chunk
from moeparity.metrics.groups import select
from moeparity.output.json import plain

SIZE = {"sequences": 32, "tokens": 100, "vocabulary": 128}


def case(name: str) -> Case:
    return next(each for each in CASES if each.name == name)


def diagnose(*chunks: Chunk) -> Diagnosis:
    observer = Observer()
    for chunk in chunks:
        observer.add(chunk)
    return observer.diagnosis()


@pytest.mark.parametrize("planted", CASES, ids=lambda planted: planted.name)
def test_planted(planted: Case) -> None:
    diagnosis = diagnose(log(planted.setting, STYLES["usual"], NOISES["moe"], **SIZE, seed=5))
    assert outcome(planted, diagnosis) in ({"right", "open"} if planted.may_be_open else {"right"})


@pytest.fixture(scope="module")
def clean() -> Chunk:
    return log(Setting(entropy=True), STYLES["usual"], NOISES["moe"], **SIZE, seed=1)


def test_equal_sides_name_nothing(clean: Chunk) -> None:
    diagnosis = diagnose(dataclasses.replace(clean, trainer=clean.rollout))
    assert named_causes(diagnosis) == set()
    assert diagnosis.find("truncation").verdict == "not tested"
    assert diagnosis.find("E[rho]").evidence[0].value == 1


def test_cutting_a_log_into_chunks_changes_nothing(clean: Chunk) -> None:
    parts = [select(clean, (clean.sequence >= low) & (clean.sequence < low + 11)) for low in (0, 11, 22)]
    whole, cut = plain(diagnose(clean)), plain(diagnose(*parts))
    assert json.dumps(whole) == json.dumps(cut)


def test_too_few_sequences_name_no_share(clean: Chunk) -> None:
    fault = log(
        Setting(temperature=0.7, rollout=dataclasses.replace(Setting().rollout, temperature=0.7)),
        STYLES["usual"],
        NOISES["moe"],
        sequences=4,
        tokens=100,
        vocabulary=128,
    )
    diagnosis = diagnose(fault)
    assert named_causes(diagnosis) == set()
    assert diagnosis.find("temperature").verdict == "undecided"


def test_the_temperature_is_estimated_with_an_interval() -> None:
    planted = case("sampler at T = 0.9, trainer at 1").setting
    diagnosis = diagnose(log(planted, STYLES["usual"], NOISES["moe"], **SIZE)).find("temperature")
    assert diagnosis.evidence[0].name == "T"
    low, high = bounds(diagnosis.evidence[0])
    assert low < 0.9 < high < 1
    assert 0.89 < diagnosis.evidence[0].value < 0.91
    assert high - low < 0.08


@pytest.mark.parametrize("raw", [False, True], ids=["processed", "raw"])
@pytest.mark.parametrize("temperature", [0.64, 0.87, 1.22])
@pytest.mark.parametrize("style", STYLES)
def test_the_interval_holds_the_temperature_beside_stale_sequences(style: str, temperature: float, raw: bool) -> None:
    """Other weights in a few sequences, a rounding that moves routes, or neither: named or not, T is never excluded."""
    sides = (Side(), Side(temperature=temperature))
    rollout, trainer = sides if raw else sides[::-1]
    for seed, (drift, drifted, noise) in enumerate([(0.0, 0.0, "fp8"), (0.3, 0.1, "moe, high"), (1.0, 0.2, "dense")]):
        setting = Setting(temperature=temperature, rollout=rollout, trainer=trainer, drift=drift, drifted=drifted)
        chunk = log(setting, STYLES[style], NOISES[noise], sequences=48, tokens=80, vocabulary=256, seed=seed)
        for finding in diagnose(chunk).findings:
            for evidence in finding.evidence:
                if evidence.name == "T":
                    low, high = bounds(evidence)
                    assert low <= temperature <= high


def test_kept_mass_and_kind_of_truncation() -> None:
    p, k = (
        diagnose(log(case(name).setting, STYLES["flat"], NOISES["dense"], **SIZE)).find("truncation")
        for name in ("top_p = 0.9", "top_k = 20")
    )
    assert "top-p or min-p" in p.alternatives
    assert "top-k" in k.alternatives
    least = next(number.value for number in p.evidence if number.name.startswith("kept mass"))
    assert 0.89 < least < 0.92


def test_a_banned_token_and_a_padded_head_are_not_called_top_k() -> None:
    """Both normalise over other tokens than the other side does, and keep none alone, as top-k does."""
    setting = case("a token that is never drawn").setting
    finding = diagnose(log(setting, STYLES["usual"], NOISES["moe"], **SIZE)).find("truncation")
    assert finding.verdict == "named"
    assert "top-k" not in finding.reason
    assert any("bans" in alternative for alternative in finding.alternatives)
    assert any("padding of the vocabulary" in alternative for alternative in finding.alternatives)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("size", [(32, 100), (64, 200)])
def test_a_repetition_penalty_is_no_temperature(style: str, size: tuple[int, int]) -> None:
    """Modes that were not seen before move the other way; a temperature that fits would be 2.36, or below 0."""
    setting = case("a repetition penalty of 1.2").setting
    diagnosis = diagnose(log(setting, STYLES[style], NOISES["moe"], sequences=size[0], tokens=size[1], seed=1003))
    assert named_causes(diagnosis) == set()
    assert diagnosis.find("temperature").verdict == "undecided"


def test_a_cap_on_logits_is_listed_beside_a_temperature() -> None:
    planted = case("sampler at T = 0.9, trainer at 1").setting
    finding = diagnose(log(planted, STYLES["usual"], NOISES["moe"], **SIZE)).find("temperature")
    assert finding.verdict == "named"
    assert any("cap" in alternative for alternative in finding.alternatives)
    assert "nearer to 1 if" in finding.reason


def test_all_zeros_cannot_be_told_from_greedy(clean: Chunk) -> None:
    diagnosis = diagnose(dataclasses.replace(clean, rollout=torch.zeros_like(clean.rollout)))
    finding = diagnosis.find("placeholders")
    assert finding.verdict == "named"
    assert any("greedy" in side for side in finding.alternatives)


def test_one_lone_zero_is_left_open(clean: Chunk) -> None:
    rollout = clean.rollout.clone()
    rollout[int(clean.trainer.argmin())] = 0.0
    finding = diagnose(dataclasses.replace(clean, rollout=rollout)).find("placeholders")
    assert finding.verdict == "undecided"
    assert finding.tells_apart


def test_a_hard_truncation_is_no_other_base() -> None:
    setting = case("min_p = 0.3").setting
    diagnosis = diagnose(log(setting, STYLES["flat"], NOISES["moe"], sequences=128, tokens=100, vocabulary=512, seed=0))
    assert diagnosis.find("log base").verdict == "ruled out"
    assert diagnosis.find("truncation").verdict == "named"


@pytest.mark.parametrize("noise", ["moe", "moe, high"])
@pytest.mark.parametrize("factor", [1.4, 1.5, 1.3, 1.1, 0.75, 0.5, 0.45, 2.0, 2.2])
def test_a_factor_that_is_no_base_is_told_as_what_it_is(factor: float, noise: str) -> None:
    """Log-probabilities times 1.4 lie near those of base 2 (1.443), and are not called so."""
    diagnosis = diagnose(log(Setting(factor=factor), STYLES["usual"], NOISES[noise], **SIZE, seed=2))
    assert named_causes(diagnosis) == {"scaled"}
    estimate = diagnosis.find("scaled").evidence[1].value
    assert estimate == pytest.approx(factor, rel=0.02)
    assert f"times {estimate:.4g}" in diagnosis.find("scaled").reason
    assert diagnosis.find("log base").verdict == "ruled out"


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("base", [2, 10])
def test_a_base_is_named_through_noise(base: int, style: str) -> None:
    setting = Setting(factor=1 / math.log(base))
    diagnosis = diagnose(log(setting, STYLES[style], NOISES["moe, high"], **SIZE, seed=4))
    assert named_causes(diagnosis) == {"log base"}
    assert f"base {base}" in diagnosis.find("log base").reason


def test_few_sequences_leave_the_mean_ratio_open(clean: Chunk) -> None:
    diagnosis = diagnose(select(clean, clean.sequence < 3)).find("E[rho]")
    assert diagnosis.verdict == "undecided"
    assert "[no bounds]" in str(diagnosis.evidence[0])


def test_rates_stay_between_0_and_1(clean: Chunk) -> None:
    outside, beyond = diagnose(select(clean, clean.sequence < 12)).find("clip fraction").evidence
    for number in (outside, beyond):
        low, high = bounds(number)
        assert 0 <= low <= number.value <= high <= 1
        assert high > 0


def test_minus_infinity_is_named_and_left_out(clean: Chunk) -> None:
    trainer = clean.trainer.clone()
    trainer[7] = -math.inf
    diagnosis = diagnose(dataclasses.replace(clean, trainer=trainer))
    assert named_causes(diagnosis) == {"impossible tokens"}
    assert math.isfinite(diagnosis.find("E[rho]").evidence[0].value)


def test_no_tokens() -> None:
    assert Observer().diagnosis().names("named") == ()


def test_text_and_json_hold_the_findings(clean: Chunk) -> None:
    observer = Observer()
    observer.add(clean)
    observer.note(
        Sequence(
            id="s0",
            where=clean.where[0],
            token_ids=clean.tokens[:2],
            mask=torch.ones(2, dtype=torch.bool),
            versions=torch.tensor([3, 4]),
            sampling=Sampling(temperature=0.7, logprobs_mode="raw"),
        )
    )
    diagnosis = observer.diagnosis()
    text = " ".join(" ".join(diagnosis_lines(diagnosis)).split())
    assert "temperature 0.7, log-probabilities raw: 1 sequence" in text
    assert "1 sequence was sampled by more than one version" in text
    assert "moeparity init CHECKPOINT" in text
    assert all(len(line) <= 80 for line in diagnosis_lines(diagnosis))


def test_a_side_far_below_the_other_is_no_factor_of_it(clean: Chunk) -> None:
    """Any small enough factor removes most of a large distance; what it leaves is as large as r's spread here."""
    noise = torch.randn(clean.rollout.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    far = 3 * clean.rollout - (2 + 1.5 * noise).abs()
    diagnosis = diagnose(dataclasses.replace(clean, trainer=far))
    assert diagnosis.find("unrelated").verdict == "ruled out"
    assert diagnosis.find("scaled").verdict == "ruled out"
