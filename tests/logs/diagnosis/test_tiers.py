"""Staleness comes first; then where the difference lies; then what the objective makes of it."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from benchmarks.language import NOISES, STYLES, Setting, log
from moeparity.logs.chunks import Chunker
from moeparity.logs.diagnosis import Diagnosis, Observer
from moeparity.logs.diagnosis.state import Tail
from moeparity.metrics.chunk import UNKNOWN, Chunk
from tests.metrics.made import records


def diagnose(chunk: Chunk) -> Diagnosis:
    observer = Observer()
    observer.add(chunk)
    return observer.diagnosis()


def with_delta(chunk: Chunk, delta: torch.Tensor) -> Chunk:
    return dataclasses.replace(chunk, trainer=torch.minimum(chunk.rollout + delta, torch.tensor(-1e-9)))


@pytest.fixture(scope="module")
def base() -> Chunk:
    return log(Setting(), STYLES["flat"], NOISES["none"], sequences=64, tokens=64, vocabulary=64, seed=3)


@pytest.fixture(scope="module")
def noise(base: Chunk) -> torch.Tensor:
    return 0.01 * torch.randn(base.tokens.numel(), generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_stale_tokens_are_split_off_before_anything_is_judged(base: Chunk, noise: torch.Tensor) -> None:
    lag = (base.sequence % 4 == 0).long()
    stale = with_delta(base, torch.where(lag > 0, 50 * noise, noise))
    diagnosis = diagnose(dataclasses.replace(stale, labels={"version_lag": lag}))
    assert diagnosis.find("stale weights").verdict == "named"
    assert (diagnosis.tokens, diagnosis.stale) == (48 * 64, 16 * 64)
    assert diagnosis.find("size").evidence[0].value < 1e-3
    assert diagnosis.find("weight lag").verdict == "named"
    assert diagnose(stale).find("stale weights").verdict == "not tested"


def test_lag_zero_everywhere_rules_staleness_out(base: Chunk, noise: torch.Tensor) -> None:
    fresh = dataclasses.replace(with_delta(base, noise), labels={"version_lag": torch.zeros_like(base.tokens)})
    diagnosis = diagnose(fresh)
    assert diagnosis.find("stale weights").verdict == diagnosis.find("weight lag").verdict == "ruled out"


def test_only_stale_tokens_are_judged_with_that_said(base: Chunk, noise: torch.Tensor) -> None:
    diagnosis = diagnose(
        dataclasses.replace(with_delta(base, noise), labels={"version_lag": torch.ones_like(base.tokens)})
    )
    assert "No others are left" in diagnosis.find("stale weights").reason
    assert diagnosis.tokens == base.tokens.numel()


def test_versions_mixed_within_a_sequence_are_counted(base: Chunk, noise: torch.Tensor) -> None:
    lag = (base.position < 32).long() * (base.sequence < 5)
    diagnosis = diagnose(dataclasses.replace(with_delta(base, noise), labels={"version_lag": lag})).find(
        "stale weights"
    )
    assert next(each.value for each in diagnosis.evidence if each.name == "sampled by more than one version") == 5


def test_one_token_of_unknown_weights_hides_no_staleness(base: Chunk, noise: torch.Tensor) -> None:
    lag = (base.sequence % 4 == 0).long().index_fill(0, torch.tensor([70, 71]), UNKNOWN)
    spoilt = with_delta(base, torch.where(lag != 0, 50 * noise, noise))
    diagnosis = diagnose(dataclasses.replace(spoilt, labels={"version_lag": lag}))
    assert diagnosis.find("stale weights").verdict == "named"
    assert (diagnosis.tokens, diagnosis.stale, diagnosis.unsaid) == (48 * 64 - 2, 16 * 64, 2)
    assert diagnosis.find("size").evidence[0].value < 1e-3


def test_without_known_fresh_tokens_those_of_unknown_weights_are_judged(base: Chunk, noise: torch.Tensor) -> None:
    lag = torch.where(base.sequence % 4 == 0, 1, UNKNOWN)
    diagnosis = diagnose(dataclasses.replace(with_delta(base, noise), labels={"version_lag": lag}))
    assert (diagnosis.tokens, diagnosis.stale, diagnosis.unsaid) == (48 * 64, 16 * 64, 0)
    assert "left out of all that follows" in diagnosis.find("stale weights").reason


def test_versions_of_a_step_that_differ_are_stale_whichever_the_trainers_is() -> None:
    [first, second, third] = records(3, 6, 0.01)
    cases = (((7, 7), False, "not tested"), ((7, 8), False, "named"), ((7, 7), True, "named"))
    for versions, several, verdict in cases:
        observer = Observer()
        for sequence, version in zip((first, third), versions, strict=True):
            column = torch.full((6,), version)
            observer.note(dataclasses.replace(sequence, versions=column, several=several))
        observer.note(dataclasses.replace(second, versions=torch.full((6,), 9)))
        observer.add(next(Chunker().chunks([first, second, third])))
        assert observer.diagnosis().find("stale weights").verdict == verdict


def test_growth_is_named_and_measured(base: Chunk, noise: torch.Tensor) -> None:
    assert diagnose(with_delta(base, noise)).find("growth with position").verdict == "ruled out"
    grown = diagnose(with_delta(base, torch.where(base.position < 32, noise, 2 * noise))).find("growth with position")
    assert grown.verdict == "named"
    assert 1.7 < grown.evidence[0].value < 2.3


def test_sequences_in_a_wrong_state_are_named_with_their_place(base: Chunk, noise: torch.Tensor) -> None:
    diagnosis = diagnose(with_delta(base, torch.where(base.sequence == 11, 20 * noise, noise))).find(
        "outlier sequences"
    )
    assert diagnosis.verdict == "named"
    assert "s11 (simulated.jsonl:12)" in diagnosis.reason
    assert diagnose(with_delta(base, noise)).find("outlier sequences").verdict == "ruled out"


@pytest.mark.parametrize("scatter", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("factor", [3.5, 7.0])
def test_a_quarter_of_the_sequences_with_most_of_k3_is_never_ruled_out(
    base: Chunk, noise: torch.Tensor, scatter: float, factor: float
) -> None:
    """A quarter widens the scatter that each is held to, and contents scatter too."""
    generator = torch.Generator().manual_seed(7)
    content = (scatter * torch.randn(64, generator=generator, dtype=torch.float64)).exp()[base.sequence]
    stale = torch.where(base.sequence % 4 == 0, factor, 1.0)
    finding = diagnose(with_delta(base, noise * content * stale)).find("outlier sequences")
    assert finding.verdict == ("named" if scatter < 0.3 else finding.verdict)
    assert finding.verdict in {"named", "undecided"}
    assert "s" in finding.reason.rpartition(": ")[2]
    if finding.verdict == "undecided":
        assert "have at least twice the |delta| of the others" in finding.reason
    alike = diagnose(with_delta(base, noise * content)).find("outlier sequences")
    assert alike.verdict in ({"ruled out"} if scatter < 0.3 else {"ruled out", "undecided", "described"})


def test_outliers_that_explain_little_are_shown_not_named(base: Chunk, noise: torch.Tensor) -> None:
    great = torch.where(base.position % 64 == 5, 60 * noise.abs() + 0.5, noise)
    diagnosis = diagnose(with_delta(base, torch.where(base.sequence == 11, 4 * noise, great))).find("outlier sequences")
    assert (diagnosis.verdict, diagnosis.evidence[0].value) == ("described", 1)
    assert "1 of 64 sequences differs as a whole" in diagnosis.reason


def test_great_events_make_no_outlier_of_a_sequence(base: Chunk, noise: torch.Tensor) -> None:
    delta = noise.clone()
    delta[:64] += torch.zeros(64, dtype=torch.float64).index_fill(0, torch.tensor([5, 40]), 1.5)
    assert diagnose(with_delta(base, delta)).find("outlier sequences").verdict == "ruled out"


def test_confident_tokens(base: Chunk, noise: torch.Tensor) -> None:
    sure = base.rollout > -0.1
    delta = torch.where(sure & (base.position % 8 == 0), -2.0, noise)
    assert diagnose(with_delta(base, delta)).find("confident tokens").verdict == "named"
    assert diagnose(with_delta(base, noise * (~sure))).find("confident tokens").verdict == "ruled out"


def test_flipped_positions(base: Chunk, noise: torch.Tensor) -> None:
    flipped = (base.position % 4 == 0).long()
    chunk = dataclasses.replace(with_delta(base, noise * (1 + 9 * flipped)), labels={"flipped": flipped})
    diagnosis = diagnose(chunk).find("routing flips")
    assert diagnosis.verdict == "named"
    assert diagnosis.evidence[0].value == pytest.approx(100 / 103, abs=0.02)
    unknown = dataclasses.replace(chunk, labels={"flipped": flipped * 0 - 1})
    assert diagnose(unknown).find("routing flips").verdict == "not tested"


def test_size_against_published_ranges(base: Chunk, noise: torch.Tensor) -> None:
    assert "dense bf16" in diagnose(with_delta(base, noise)).find("size").reason
    assert diagnose(with_delta(base, 40 * noise)).find("size").verdict == "named"
    assert diagnose(with_delta(base, 13 * noise)).find("size").verdict == "undecided"


def test_top_share_against_a_sort() -> None:
    values = torch.randn(5000, generator=torch.Generator().manual_seed(1), dtype=torch.float64).exp() ** 4
    tail = Tail()
    for part in values.split(700):
        tail.add(part)
    exact = values.sort(descending=True).values
    for share in (0.001, 0.01, 0.5, 1.0):
        assert tail.top(share) == pytest.approx(float(exact[: round(5000 * share)].sum() / exact.sum()), rel=0.02)
