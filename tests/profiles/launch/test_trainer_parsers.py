"""The readers of Megatron-LM's, slime's and miles's command lines beside the parsers of these themselves.

Compared is every option of which the reader says anything; options it has no list for stand under "Not looked at".
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from moeparity.profiles.launch import miles as reader
from moeparity.profiles.launch import read
from moeparity.profiles.launch.knowledge import listed, unstated
from tests.profiles.launch.own_parser import OwnParser, compared_lines, plain, read_otherwise

pytestmark = pytest.mark.live
FILES = Path(__file__).parent / "files"


@pytest.fixture(scope="module")
def megatron() -> Iterator[OwnParser]:
    own_parser = OwnParser("megatron")
    yield own_parser
    own_parser.close()


@pytest.fixture(scope="module")
def slime() -> Iterator[OwnParser]:
    own_parser = OwnParser("slime")
    yield own_parser
    own_parser.close()


@pytest.fixture(scope="module")
def miles() -> Iterator[OwnParser]:
    own_parser = OwnParser("miles")
    yield own_parser
    own_parser.close()


def test_lists_are_those_of_megatrons_actions(megatron: OwnParser) -> None:
    actions = {plain(name): action for action in megatron.actions for name in action["names"]}
    without_value = {name for name, action in actions.items() if action["words"] == 0} - {"h", "help"}
    toggled = {name for name, action in actions.items() if action["class"] == "BooleanOptionalAction"}
    assert without_value - toggled == listed("megatron", "switches")
    assert {name for name in toggled if not name.startswith("no_")} == listed("megatron", "toggles")
    assert {name for name, action in actions.items() if action["words"] in ("+", "*", 3)} == listed(
        "megatron", "several"
    )
    assert set(actions) >= listed("megatron", "training")
    assert set(actions) >= {option.name for option in unstated("megatron", "arguments")}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["megatron", "slime", "miles"])
def test_lines_of_random_options(name: str, seed: int, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    assert compared_lines(request.getfixturevalue(name), 100, seed, tmp_path) > 80


LINES = (
    "--sequence-parallel --tensor-model-parallel-size 2 --tensor-model-parallel-size 4",
    "--no-rope-fusion --no-bias-swiglu-fusion --deterministic-mode --bf16",
    "--moe-router-load-balancing-type none --moe-aux-loss-coeff 0.1 --moe-router-dtype=fp64",
    "--cp-comm-type p2p a2a --moe-token-dispatcher-type flex",
    "--hidden-dropout 0 --moe-expert-capacity-factor 1.5 --transformer-impl local",
    "--fp8-format e4m3 --fp4-format e2m1 --first-last-layers-bf16",
    "--data-path 0.3 a 0.7 b --swiglu --untie-embeddings-and-output-weights",
    "--expert-tensor-parallel-size 1 --expert-model-parallel-size 8 --no-masked-softmax-fusion",
)


def test_lines_of_launch_scripts(megatron: OwnParser, tmp_path: Path) -> None:
    for line in LINES:
        assert read_otherwise(megatron, line.split(), tmp_path) == [], line


def test_what_slime_makes_of_its_arguments(slime: OwnParser, tmp_path: Path) -> None:
    """Which dispatcher it takes in place of allgather, and how many of an engine's ranks are tensor parallel."""
    for dispatcher in ("", "--moe-token-dispatcher-type allgather", "--moe-token-dispatcher-type flex"):
        for stages in ("", "--sglang-pp-size 4", "--sglang-pipeline-parallel-size 2"):
            line = f"--rollout-num-gpus-per-engine 16 --expert-model-parallel-size 8 {dispatcher} {stages}"
            words = [*slime.first, *line.split()]
            parsed = slime.ask(words)["values"]["made"]
            (tmp_path / "run.sh").write_text(f"python3 train.py {shlex.join(words)}\n", "utf-8")
            sides = {side.role: side for side in read(tmp_path / "run.sh").sides}
            assert sides["rollout"].placement.get("tensor", 1) == parsed["tensor"], line
            assert ("expert" in sides["trainer"].placement) == (parsed["dispatcher"] != "alltoall"), line


def test_what_miles_makes_of_its_arguments(miles: OwnParser, tmp_path: Path) -> None:
    """Its engines' tensor ranks are all their GPUs; true-on-policy mode makes SGLang's inference deterministic."""
    for stages in ("", "--sglang-pp-size 4"):
        for mode in ("", "--true-on-policy-mode"):
            words = [*miles.first, *f"--rollout-num-gpus-per-engine 16 {stages} {mode}".split()]
            parsed = miles.ask(words)["values"]["made"]
            (tmp_path / "run.sh").write_text(f"python3 train.py {shlex.join(words)}\n", "utf-8")
            launch = read(tmp_path / "run.sh")
            assert launch.engine == "miles"
            (rollout,) = [side for side in launch.sides if side.role == "rollout"]
            assert rollout.placement["tensor"] == parsed["tensor"] == 16
            assert ("sglang-deterministic" in rollout.variant) == parsed["deterministic"]


def test_the_lists_of_miles_are_those_of_its_actions(miles: OwnParser, slime: OwnParser) -> None:
    of_slime = {plain(name) for action in slime.actions for name in action["names"]}
    actions = {plain(name): action for action in miles.actions for name in action["names"]}
    assert set(actions) - of_slime >= reader.ONLY
    assert {name for name in reader.ONLY if actions[name]["words"] == 0} == listed("miles", "switches")
    assert {name for name in reader.ONLY if actions[name]["words"] in ("+", "*")} == listed("miles", "several")


def test_a_line_that_megatron_refuses_is_told(megatron: OwnParser, tmp_path: Path) -> None:
    for line in (
        "--tensor_model_parallel_size 2",
        "--tensor-model-parallel 2",
        "--bf16 false",
        "--no-moe-permute-fusion",
    ):
        assert "refused" in megatron.ask(line.split()), line
        (tmp_path / "launch.sh").write_text(f"python pretrain_gpt.py {line}\n", "utf-8")
        launch = read(tmp_path / "launch.sh")
        assert launch.ignored or any("its parser refuses it" in note.says for note in launch.notes), line
