"""What is asked for: nothing after a clear answer, else what is missing, the most informative first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch

from moeparity.doctor.asks import asks
from moeparity.doctor.case import Case, DoctorRequest, gather, opened
from moeparity.doctor.report import Answer
from tests.doctor.programs import log

ASKED = ("trainer recorded", "fingerprints", "--previous", "launch files", "a trace", "routes in the log", "more seq")
"""A word of each, in order, of a log of the sampler alone and nothing else."""


@pytest.fixture(scope="module")
def case(
    small: Path, few_ids: torch.Tensor, few_scores: torch.Tensor, tmp_path_factory: pytest.TempPathFactory
) -> Case:
    """The sampler's log alone."""
    path = log(tmp_path_factory.mktemp("case") / "log.jsonl", few_ids, few_scores, None)
    request = DoctorRequest(evidence=(path,), checkpoint=small, device="cpu")
    return opened(request, gather(request))


def test_the_most_informative_comes_first_with_what_it_settles(case: Case) -> None:
    sentences = [*asks(case, "undecided")]
    assert len(sentences) == len(ASKED)
    for sentence, word in zip(sentences, ASKED, strict=True):
        assert word in sentence
    assert all("settle" in sentence for sentence in sentences[:-1])
    assert [*asks(case, "not explained")] == sentences[:-1]


def test_what_is_there_is_not_asked_for(case: Case, small_before: Path, small: Path) -> None:
    there = replace(case.evidence, fingerprints=(small,), traces=(small,), previous=small_before)
    sentences = [*asks(replace(case, evidence=there), "not explained")]
    assert [word for word in ASKED if any(word in sentence for sentence in sentences)] == [
        "trainer recorded", "launch files", "routes in the log"
    ]  # fmt: skip


def test_after_a_clear_answer_nothing_is_asked_for(case: Case) -> None:
    clear = {answer for answer in get_args(Answer) if not [*asks(case, answer)]}
    assert clear == {"named", "logged", "found", "as configured"}
