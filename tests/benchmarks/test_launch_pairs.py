"""Pairs of launch files: all are planned, twelve that have every file are bisected."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks.launch_pairs import pairs, rule
from benchmarks.launch_pairs.checkpoints import EXPERT_WIDTH, checkpoint
from benchmarks.launch_pairs.pairs import MODELS, SERVERS, TRAINERS, Case, cases, covering, launch_files
from benchmarks.launch_pairs.planted import PLANTS, plant_of
from benchmarks.launch_pairs.rule import ENGINE, RING, TREE, Side, runs
from benchmarks.launch_pairs.run import answer_of, faults_of, names_what_is_refused, where_named
from moeparity.bisection.cost import expected
from moeparity.bisection.init import write_starter
from moeparity.engine.duration import FASTEST
from moeparity.errors import MoeparityError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pairs")
    for model in MODELS:
        checkpoint(model, place)
    return place


def test_every_file_is_one_of_the_pairs() -> None:
    assert (len(SERVERS), len(TRAINERS), len(list(cases()))) == (12, 12, 288)
    assert {path.name for path in (pairs.FILES / "servers").iterdir()} == set(SERVERS)
    assert all((pairs.FILES / "trainers" / trainer).is_file() for trainer in TRAINERS)
    assert {case.server for case in covering()} == set(SERVERS)
    assert {case.trainer for case in covering()} == set(TRAINERS)
    assert {case.model for case in covering()} == set(MODELS)
    assert {plant_of(case).toggle for case in cases()} == {plant.toggle for plant in PLANTS}


def test_the_rule_knows_nothing_of_moeparity() -> None:
    tree = ast.parse(Path(rule.__file__).read_text("utf-8"))
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert set(modules) == {"__future__", "collections.abc", "dataclasses", "typing"}
    assert {*rule.SERVERS, *rule.REFUSED} >= set(SERVERS)
    assert {*rule.TRAINERS, *rule.REFUSED} >= set(TRAINERS)


@pytest.mark.parametrize(
    ("side", "can"),
    [
        (Side(ranks=4, adds=ENGINE), True),
        (Side(ranks=4, adds=ENGINE, scattered=True), False),
        (Side(ranks=4, adds=TREE, scattered=True), False),
        (Side(ranks=4, adds=RING, scattered=True), True),
        (Side(ranks=16, adds=ENGINE), False),
        (Side(ranks=16, adds=RING), True),
        (Side(adds=ENGINE, scattered=True), True),
        (Side(ranks=16, grouped=True), True),
        (Side(ranks=32, grouped=True), False),
        (Side(ranks=32, grouped=True, cut_experts=False), True),
    ],
)
def test_what_can_run(side: Side, can: bool) -> None:
    assert runs(side, EXPERT_WIDTH) == can


def test_a_toggle_that_does_little_names_nothing() -> None:
    table = [
        {"name": "much", "alone": {"kl": 1.0}, "restored": {"kl": 0.1}},
        {"name": "little", "alone": {"kl": 0.1}, "restored": {"kl": 1.0}},
        {"name": "untried", "alone": None, "restored": {"kl": 0.0}},
    ]
    report = {"summary": {"blame": "cannot be told"}, "toggles": table}
    assert [where_named(report, name) for name in ("much", "little", "untried", "absent")] == ["table", "", "", ""]


@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize("server", SERVERS)
def test_a_pair_is_planned_or_refused_by_name(server: str, model: str, folder: Path) -> None:
    """What `init` and `bisect --dry-run` do, with the rates of a machine that is known."""
    wrong = []
    for trainer in TRAINERS:
        place = folder / "planned" / model
        case = Case(server, trainer, model)
        files, refused = launch_files(case, place), not {server, trainer}.isdisjoint(rule.REFUSED)
        try:
            starter = write_starter(
                folder / model, place / "recipe.yaml", server=files[0], trainer=files[1], force=True
            )
            planned = expected(starter.recipe, device="cpu", rates=FASTEST["cpu"])
        except MoeparityError as error:
            if not names_what_is_refused(case, str(error)):
                wrong.append(f"{trainer}: {error}")
        else:
            if refused or starter.sides.obstacle or planned.variants < 3:
                wrong.append(f"{trainer}: {starter.sides.obstacle or planned.variants}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("case", covering(), ids=lambda case: case.name)
def test_a_pair_comes_to_a_verdict(case: Case, folder: Path) -> None:
    (folder / case.name).mkdir()
    answer = answer_of(case, folder)
    assert not faults_of(case, answer)
    assert answer_of(case, folder) == answer, "what is kept is not run again"
