"""The planted benchmark: its own forward, factorial and judgement, and a few of its cases from end to end."""

from __future__ import annotations

import ast
import math
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import moeparity
from benchmarks.planted import checkpoints, decoys, hidden
from benchmarks.planted.cases import FIRST, Case, Planted, background, draw
from benchmarks.planted.cases import read as read_case
from benchmarks.planted.factorial import Toggle, divergence, factorial, shapley
from benchmarks.planted.hidden_cases import case as hidden_case
from benchmarks.planted.patches import PATCHES
from benchmarks.planted.program import Program, matches, sample
from benchmarks.planted.score import score
from benchmarks.planted.truth import judged, unclear
from moeparity.evidence.explain import inquiry
from moeparity.numerics.bits import same_bits
from moeparity.plan.faults.reader import shipped_faults

FOLDER = Path(checkpoints.__file__).parent
INDEPENDENT = ("attributes", "cases", "checkpoints", "factorial", "fix", "hidden_cases", "ops", "patches", "program")
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "qwen3_moe": {
        "fp32": {"layers[*].attention.norm:rsqrt": "ieee", "layers[0].moe.combine:accumulate": "bf16"},
        "bf16": {"layers[*].attention.rope:products": "fp32", "layers[1].moe.router:timing": "after_topk"},
    },
    "mixtral": {"bf16": {"layers[0].moe.combine:leaves": "slot", "layers[*].moe.norm:offset": 0.1}},
    "qwen2_moe": {"bf16": {"layers[*].moe.shared:activation": "fp32", "layers[0].attention.attend:scores": "fp32"}},
    "glm4_moe": {"fp32": {"layers[*].moe.router:sigmoid": "tanh", "layers[1].moe.experts:product": "bf16"}},
}

UNNAMED = "attention: wrong head of keys"
"""A patch for which there is no word."""


@pytest.mark.parametrize("name", [*INDEPENDENT, "patching", "programs", "submodules", "truth"])
def test_the_truth_knows_nothing_of_moeparity(name: str) -> None:
    tree = ast.parse((FOLDER / f"{name}.py").read_text("utf-8"))
    imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert not [module for module in imported if module.startswith(("moeparity", "tests"))]
    modules = [module.rpartition(".")[2] for module in imported if module.startswith("benchmarks.planted.")]
    assert {*modules} <= {*INDEPENDENT, "patching", "planted", "truth", "submodules"}


@pytest.mark.parametrize(
    ("family", "dtype"), [(family, dtype) for family, settings in SETTINGS.items() for dtype in settings]
)
def test_the_plain_forward_has_moeparitys_bits(tmp_path: Path, family: str, dtype: str) -> None:
    checkpoints.write(tmp_path, family, seed=3, layers=2, dtype="bfloat16", damped=0.5)
    program, settings = Program(tmp_path, dtype), SETTINGS[family][dtype]
    ids = sample(program, settings, sequences=4, tokens=7, seed=0)
    for settings_here in ({}, settings):
        logits = moeparity.forward(str(tmp_path), ids, dtype=dtype, settings=settings_here)["logits"]
        assert same_bits(program.logits(ids, settings_here), logits)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, Path]:
    """A case with one culprit, one interchangeable pair of nothing, and two attributes without effect."""
    folder = tmp_path_factory.mktemp("planted")
    case = Case(
        number=0,
        attempt=0,
        background="fp32",
        family="qwen3_moe",
        stored="bfloat16",
        dtype="fp32",
        damped=0.1,
        planted=(
            Planted("lm_head", "output", "model", "bf16"),
            Planted("layers[1].attention.norm", "mean", "native", "reciprocal"),
            Planted("layers[0].attention.norm", "rsqrt", "native", "ieee"),
            Planted("embed", "output", "model", "bf16"),
        ),
    )
    checkpoints.write(folder / "checkpoint", case.family, seed=1, layers=2, dtype="bfloat16", damped=0.1)
    ids = torch.randint(0, 128, (26, 8), generator=torch.Generator().manual_seed(0))
    save_file({"input_ids": ids}, folder / "tokens.safetensors")
    return case, folder


def costs_of(case: Case, folder: Path) -> tuple[list[Toggle], Any]:
    toggles = [Toggle(p.selector, p.attribute, p.reference, p.candidate) for p in case.planted]
    ids = torch.randint(0, 128, (26, 8), generator=torch.Generator().manual_seed(0))
    return toggles, factorial(Program(folder / "checkpoint", case.dtype), toggles, ids)


def test_the_factorial_is_every_mixture_on_its_own(planted: tuple[Case, Path]) -> None:
    case, folder = planted
    toggles, costs = costs_of(case, folder)
    program = Program(folder / "checkpoint", case.dtype)
    ids = torch.randint(0, 128, (26, 8), generator=torch.Generator().manual_seed(0))
    assert costs.shape == (16, 26)
    for mixture in (0, 5, 14):
        moved = {t.key: t.candidate if mixture >> i & 1 else t.reference for i, t in enumerate(toggles)}
        expected = divergence(program.logits(ids, moved), program.logits(ids, {}))
        assert (costs[mixture] == expected).all()


def test_shares_are_means_over_all_orders() -> None:
    game = np.random.default_rng(0).normal(size=16)
    gains = np.zeros(4)
    for order in permutations(range(4)):
        before = 0
        for player in order:
            gains[player] += game[before | 1 << player] - game[before]
            before |= 1 << player
    assert np.allclose(shapley(game, 4), gains / math.factorial(4), atol=1e-12)


def test_moeparity_is_held_to_the_truth(planted: tuple[Case, Path]) -> None:
    case, folder = planted
    toggles, costs = costs_of(case, folder)
    truth = judged([toggle.key for toggle in toggles], costs / 7, 26)
    assert truth.culprits == {"lm_head:output"}
    assert [row.idle for row in truth.rows] == [False, True, False, True]
    assert read_case(case.data()) == case
    answer = decoys.ask(case, folder, 26)
    judgement = score(case, truth, answer)
    assert judgement.outcome == "right"
    assert judgement.top
    assert judgement.shares == judgement.shares_given == (True,)
    assert answer.whole == pytest.approx(truth.given, rel=1e-9)
    assert answer.roles["layers[1].attention.norm:mean"] == "had no effect"
    wrong = decoys.Answer(**{**vars_of(answer), "roles": {**answer.roles, "lm_head:output": "contributes"}})
    assert score(case, truth, wrong).missed == ("lm_head:output",)
    unsure = decoys.Answer(**{**vars_of(answer), "roles": {**answer.roles, "lm_head:output": "undecided"}})
    assert score(case, truth, unsure).outcome == "undecided"
    assert not score(case, truth, unsure).toggles_named
    wrong = decoys.Answer(**{**vars_of(answer), "roles": dict.fromkeys(answer.roles, "culprit")})
    assert len(score(case, truth, wrong).blamed) == 3
    assert score(case, truth, wrong).outcome == "wrong"


def vars_of(answer: decoys.Answer) -> dict[str, Any]:
    return {name: getattr(answer, name) for name in answer.__dataclass_fields__}


def test_two_that_stand_in_for_each_other_are_saturated_and_one_is_not() -> None:
    either = np.array([0.0, 1.0, 1.0, 1.1])[:, None] * np.linspace(0.9, 1.1, 5)
    assert judged(["a", "b"], either, 5).saturated == {"a", "b"}
    costs = np.array([0.0, 1.0, 0.0, 1.0])[:, None] * np.linspace(0.9, 1.1, 5)
    truth = judged(["a", "b"], costs, 5)
    assert (truth.culprits, truth.saturated, truth.rows[1].idle) == ({"a"}, frozenset(), True)
    assert unclear(truth, "fp32") == ""
    half = np.array([0.0, 0.5, 0.5, 1.0])[:, None] * np.linspace(0.9, 1.1, 5)
    assert unclear(judged(["a", "b"], half, 5), "fp32") == "near saturation"


def test_a_draw_is_the_same_every_time_and_holds_enough() -> None:
    assert [background(number) for number in range(FIRST, FIRST + 160)].count("clean") == 16
    for number in range(FIRST, FIRST + 20):
        draft = draw(number, 0, background(number))
        assert draft == draw(number, 0, background(number))
        nodes = {place.selector for place in (*draft.large, *draft.small, *draft.idle)}
        assert not [name for name in nodes if "[L]" in name]
    assert matches("layers[*].moe.gate", "layers[11].moe.gate")
    assert not matches("layers[*].moe", "layers[1].moe.gate")


@pytest.mark.parametrize("name", ["combine: accumulated in fp32", UNNAMED, None])
def test_a_hidden_change_is_found_and_named(tmp_path: Path, name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == UNNAMED:
        # What no choice gives is looked for to the end, which may come sooner; a trial of a fault takes more work than
        # one of a choice.
        monkeypatch.setattr(inquiry, "WORK", 1024)
    hidden_cases = map(hidden_case, range(FIRST, FIRST + len(PATCHES) + 10))
    case = next(case for case in hidden_cases if (case.patch.name if case.patch else None) == name)
    answer = hidden.ask(case, tmp_path)
    assert answer.faithful
    assert answer.right_node(case)
    assert answer.name(case) == "right"
    assert answer.acts == (name is not None)
    assert bool(answer.named) == (name == "combine: accumulated in fp32")
    assert (answer.tried > 150) == (name == UNNAMED)


def test_what_the_vocabulary_has_no_word_for_is_right_without_a_name_only() -> None:
    hiddens = list(map(hidden_case, range(FIRST, FIRST + 60)))
    swapped = next(case for case in hiddens if case.patch and case.patch.name == "experts: gate and up swapped")
    wordless = next(case for case in hiddens if case.patch and not case.patch.answers)
    exchanged = "layers[0].moe.experts:fault=gate-and-up-exchanged"
    for case, choices, name in (
        (swapped, (exchanged,), "right"),
        (swapped, ("layers[0].moe.experts:activation=fp32", exchanged), "right"),
        (swapped, (f"{exchanged} with layers[0].moe.experts:activation=fp32",), "another"),
        (swapped, (), "none"),
        (wordless, (), "right"),
        (wordless, (exchanged,), "another"),
    ):
        answer = hidden.Answer(
            faithful=True, acts=True, status="fail", roots=(case.node,), named=choices, nearest="", equal=1.0, tried=1,
            seconds=0.0, bytes=0,
        )  # fmt: skip
        assert answer.name(case) == name
        assert answer.right_node(case)


def test_answers_that_are_faults_are_shipped_ones() -> None:
    words = [answer.removeprefix("fault=") for patch in PATCHES for answer in patch.answers if "fault=" in answer]
    assert len(words) >= 5
    assert {word.partition("(")[0] for word in words} <= set(shipped_faults())
