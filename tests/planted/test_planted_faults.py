"""A few cases of `benchmarks.planted_faults`, and what the suite rests on: its functions, its truth, its scorer."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.planted_faults import kinds
from benchmarks.planted_faults.answer import Answer, Claim
from benchmarks.planted_faults.case_files import toggle_of
from benchmarks.planted_faults.cases import Case, Function, call
from benchmarks.planted_faults.catalogue import FUNCTIONS, OPS, REGIONS, REGIONS_OF
from benchmarks.planted_faults.page import page
from benchmarks.planted_faults.score import QUESTIONS, Mark
from benchmarks.planted_faults.suite import Fixed, Result, Suite
from benchmarks.planted_faults.truth import Trial, holds, trial_of, truth_of

FOLDER = Path(kinds.__file__).parent
CLAIMS = ("first root", "innocent roots", "name", "divergence", "values")
"""What no answer to these seeds may be wrong about, whatever it leaves unsaid."""
Marks = dict[str, list[Mark]]
SEEDS = (2, 5, 6, 11, 13, 16, 38)


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Suite:
    return Suite(tmp_path_factory.mktemp("faults"), request.getfixturevalue)


@pytest.mark.parametrize("name", ["plain", "regions", "spoilt", "catalogue"])
def test_what_is_planted_shares_no_code_with_moeparity(name: str) -> None:
    tree = ast.parse((FOLDER / f"{name}.py").read_text("utf-8"))
    imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert imported
    assert not [module for module in imported if module.startswith(("moeparity", "tests"))]
    assert {module for module in imported if module.startswith("benchmarks")} <= {"benchmarks.planted_faults"}


def clean_functions(suite: Suite, model: str) -> Iterator[tuple[Function, ...]]:
    scene = suite.scene(0, model, 7, 9, 3, "left")
    ops = [(name, op) for name, op in scene.nodes if op in OPS[model]]
    yield tuple(Function((name,), call(FUNCTIONS[op], {}), faulty=False) for name, op in ops)
    for region in REGIONS_OF[model]:
        places = scene.regions(REGIONS[region])
        yield tuple(Function(tuple(nodes), call(region, {}), faulty=False) for nodes in places)


@pytest.mark.parametrize("model", OPS)
def test_functions_without_a_fault_have_the_bits_of_their_nodes(suite: Suite, model: str) -> None:
    blank = Case(seed=0, kind="clean", model=model, sequences=7, length=9, batches=(3, 3), padding="left")
    for functions in clean_functions(suite, model):
        truth = truth_of(replace(blank, functions=functions), suite.runs(0))
        assert not truth.roots
        assert truth.whole == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_case(suite: Suite, seed: int) -> None:
    result = suite.result(seed)
    assert {mark.question for mark in result.marks} >= {"first root", "innocent roots", "all roots"}
    assert [mark for mark in result.marks if mark.question in CLAIMS and mark.outcome == "wrong"] == []


@dataclass(frozen=True)
class Known:
    """A case and moeparity's answer."""

    fixed: Fixed
    answer: Answer

    def marks(self, *, case: dict[str, Any] | None = None, truth: dict[str, Any] | None = None, **fields: Any) -> Marks:
        """By question, with another answer, to another case, or held to another truth."""
        fixed = replace(
            self.fixed,
            case=replace(self.fixed.case, **(case or {})),
            truth=replace(self.fixed.truth, **(truth or {})),
        )
        marks = fixed.marks(replace(self.answer, **fields))
        return {question: [m for m in marks if m.question == question] for question in QUESTIONS}


@pytest.fixture(scope="module")
def known_case(suite: Suite) -> Known:
    """A norm with a known rounding, whose name and role the answer has right."""
    case = Case(
        seed=1,
        kind="a rounding",
        model="qwen3_moe",
        sequences=9,
        length=8,
        batches=(3, 3),
        padding="right",
        functions=(
            Function(
                ("layers[1].moe.norm",), "partial(plain.norm, late=True)", ("layers[1].moe.norm:normalized=fp32",)
            ),
            Function(("layers[2].moe.norm",), "plain.norm", faulty=False),
        ),
    )
    runs = suite.runs(case.seed)
    return Known(Fixed(case, truth_of(case, runs), runs), suite.ask(case))


def outcomes(marks: Marks, question: str) -> set[str]:
    return {mark.outcome for mark in marks[question]}


def test_a_known_case_is_right_in_every_question_that_it_has(known_case: Known) -> None:
    assert known_case.fixed.truth.first == "layers[1].moe.norm"
    marks = known_case.marks()
    questions = {question for question, own_marks in marks.items() if own_marks}
    assert questions >= {"first root", "all roots", "sequences", "name", "role", "trials", "no effect", "divergence"}
    assert {m.outcome for question, own_marks in marks.items() for m in own_marks if question != "tokens"} <= {
        "right",
        "undecided",
    }


WRONG_ANSWERS: dict[str, dict[str, Any]] = {
    "first root": {"roots": {"layers[2].moe.norm": 9}},
    "innocent roots": {"roots": {"layers[1].moe.norm": 9, "layers[2].moe.norm": 9}},
    "sequences": {"roots": {"layers[1].moe.norm": 8}},
    "values": {"same_values": True},
    "divergence": {"whole": 0.125},
    "tokens": {"tokens": 1},
    "name": {"names": {"layers[1].moe.norm": (Claim(choices=("layers[1].moe.norm:square=bf16",)),)}},
    "not finite": {"not_finite": ("lm_head", 0, 0)},
    "padding": {"padded": True},
    "offset": {"offset": frozenset({"norm", "lm_head"})},
    "not deterministic": {"unsteady": frozenset({"layers[1].moe.norm"})},
}


@pytest.mark.parametrize("question", WRONG_ANSWERS)
def test_a_wrong_answer_is_wrong(known_case: Known, question: str) -> None:
    assert "wrong" in outcomes(known_case.marks(**WRONG_ANSWERS[question]), question)


def test_wrong_roles_and_trials_are_wrong(known_case: Known) -> None:
    guilty, idle = (toggle_of(function, known_case.fixed.case) for function in known_case.fixed.case.functions)
    for roles in ({guilty: "saturated"}, {guilty: "had no effect"}, {idle: "culprit"}):
        assert "wrong" in outcomes(known_case.marks(roles=roles), "role")
    assert outcomes(known_case.marks(roles={guilty: "had no effect"}), "no effect") == {"wrong"}
    whole = known_case.fixed.truth.whole
    assert outcomes(known_case.marks(trials={guilty: (whole, whole / 2)}), "trials") == {"wrong"}


def test_silence_is_missed_and_a_wrong_truth_shows(known_case: Known) -> None:
    silent = known_case.marks(names={}, roots={})
    assert outcomes(silent, "name") == outcomes(silent, "all roots") == outcomes(silent, "first root") == {"missed"}
    truth = {"padded": True, "not_finite": ("norm", frozenset())}
    missed = known_case.marks(padded=None, case={"offset": ("a", "b"), "unsteady": "c"}, truth=truth)
    for question in ("padding", "not finite", "offset", "not deterministic"):
        assert outcomes(missed, question) == {"missed"}
    marks = known_case.marks(truth={"roots": {"norm": frozenset({0})}, "certain": frozenset({"norm"}), "whole": 1.0})
    for question in ("first root", "innocent roots", "divergence"):
        assert outcomes(marks, question) == {"wrong"}
    assert outcomes(marks, "all roots") == {"missed"}


def test_choices_are_held_to_a_run_of_their_own(known_case: Known) -> None:
    case, runs = known_case.fixed.case, known_case.fixed.runs
    function = case.functions[0]
    assert holds(case, function, function.answers, runs)
    for false in ("normalized=bf16", "eps=0.5", "normalized=no_such_dtype"):
        assert not holds(case, function, (f"layers[1].moe.norm:{false}",), runs)


def test_numbers_of_the_model_are_held_to_a_run_too(suite: Suite) -> None:
    theta = Function(("rotary",), "partial(plain.rotary, theta=12345.0)")
    blank = Case(seed=3, kind="a number", model="mixtral", sequences=4, length=6, batches=(2, 2), padding="")
    case, runs = replace(blank, functions=(theta,)), suite.runs(3)
    assert holds(case, theta, ("rotary:rope_theta=12345.0",), runs)
    assert not holds(case, theta, ("rotary:rope_theta=12346.0",), runs)
    assert not holds(case, theta, ("rotary:no_such=1",), runs)


def test_a_claim_that_is_bounded_is_not_wrong(known_case: Known) -> None:
    node = known_case.fixed.case.functions[0].node
    bounded = Claim(choices=(f"{node}:square=bf16",), whole=False)
    assert outcomes(known_case.marks(names={node: (bounded,)}), "name") == {"missed"}
    claims = (bounded, Claim(choices=known_case.fixed.case.functions[0].answers))
    assert outcomes(known_case.marks(names={node: claims}), "name") == {"right"}


def test_a_trial_is_its_recipe_written_out(known_case: Known) -> None:
    case, runs, whole = known_case.fixed.case, known_case.fixed.runs, known_case.fixed.truth.whole
    guilty, idle = (toggle_of(function, case) for function in case.functions)
    assert trial_of(case, guilty, runs) == Trial(alone=whole, restored=0.0, idle=False)
    assert trial_of(case, idle, runs) == Trial(alone=0.0, restored=whole, idle=True)


def test_a_draw_is_the_same_every_time(suite: Suite) -> None:
    for seed in SEEDS[:3]:
        case = kinds.draw(seed, 0, suite.scene)
        assert case == kinds.draw(seed, 0, suite.scene)
        assert case.kind == kinds.kind_of(seed)
    assert {kinds.kind_of(seed) for seed in range(len(kinds.KINDS))} == set(kinds.KINDS)


def test_the_page_counts_what_it_lists() -> None:
    missed = Mark("name", "missed", "three", worded=True)
    marks = (Mark("name", "wrong", "one"), Mark("innocent roots", "wrong", "two"), missed)
    result = Result(
        seed=3, kind="a number", model="olmoe", planted="", marks=marks, redrawn=("changes nothing",), seconds=2.0
    )
    text = page([result, replace(result, seed=4, marks=(Mark("name", "right", worded=True),))])
    assert "2 cases, seeds 3 to 4, on 1 model types" in text
    assert "Wrong names: 1 of 3 (33.3%); of the 2 functions that a word says, 1 are named." in text
    assert "Cases with an innocent root: 1." in text
    assert "- name, seed 3 (a number, olmoe): one\n" in text
    assert text.index("## Missed") < text.index("- name, seed 3 (a number, olmoe): three")
