"""The campaign of patched programs: what a seed draws, and how answers are judged."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.explained.__main__ import GOAL, reached
from benchmarks.explained.campaign import Case, Outcome, cases, outcome
from benchmarks.explained.page import page


def drawn(kind: str, name: str, model: str) -> Case:
    """A case of some seed at a model that is opened anyway."""
    case = next(
        drawn_case
        for seed in range(9)
        for drawn_case in cases(seed)
        if (drawn_case.kind, drawn_case.name.split()[0]) == (kind, name)
    )
    return replace(case, model=model)


def case_key(case: Case) -> tuple[str, ...]:
    return case.kind, case.name, case.model, case.seed


def test_of_each_seed_half_are_faults_and_a_quarter_combinations() -> None:
    for seed in range(3):
        every = list(cases(seed))
        kinds = Counter(case.kind for case in every)
        patched = sum(kinds.values()) - kinds["none"]
        assert patched >= 60
        assert kinds["fault"] + kinds["unlisted"] >= patched / 2
        assert kinds["combination"] >= patched / 4
        assert list(map(case_key, every)) == list(map(case_key, cases(seed)))
    assert list(map(case_key, cases(1))) != list(map(case_key, cases(2)))


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("fault", "norm_twice", {"named"}),
        ("combination", "router", {"named", "undecided", "equivalent"}),
    ],
)
def test_a_case_is_captured_explained_and_judged(
    qwen3_moe: Path, tmp_path: Path, kind: str, name: str, words: set[str]
) -> None:
    case = drawn(kind, name, "qwen3_moe")
    result = outcome(case, qwen3_moe, tmp_path)
    assert result.right, result
    assert result.word in words
    assert result.innocent == ()
    assert reached([result])
    assert name in page([result], "a machine")
    wrong = replace(result, innocent=("norm",))
    assert not reached([wrong])
    assert "| norm |" in page([wrong], "a machine").partition("## Every case")[0]


def test_one_case_too_many_that_is_not_as_it_should_be_fails(tmp_path: Path) -> None:
    case = drawn("fault", "norm_twice", "qwen3_moe")
    right = Outcome(case=case, node="norm", is_found=True, innocent=(), word="named", says="")
    wrong = replace(right, word="other")
    allowed = round((1 - GOAL) * 20)
    assert reached([right] * (20 - allowed) + [wrong] * allowed)
    assert not reached([right] * (19 - allowed) + [wrong] * (allowed + 1))
    assert not reached([right] * 99 + [replace(right, is_found=False)])
