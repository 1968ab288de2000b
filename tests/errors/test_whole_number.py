"""Numbers that people and programs write, longer than any tensor holds, in every place that reads one from a word."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from moeparity.errors import whole_number
from tests.errors.base import BASE
from tests.hostile.contract import breach, run
from tests.logs.make_fixtures import FIXTURES
from tests.warm import load

LONG = "9" * 5000
"""More digits than Python's `int` reads."""


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("0", 0), ("000", 0), ("7", 7), ("0007", 7), (str(2**63 - 1), 2**63 - 1), ("0" * 5000 + "3", 3)),
        *((text, None) for text in ("", "-1", "+1", " 1", "1_0", "1.0", "x", "²", str(2**63), "9" * 20, LONG)),
    ],
)
def test_what_64_bits_hold_is_a_number(text: str, number: int | None) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize("number", [LONG, "9" * 20, "²"])
@pytest.mark.parametrize(
    "script",
    [
        "vllm serve m --tensor-parallel-size {}",
        "A=(1 2)\nvllm serve m --tensor-parallel-size ${{A[{}]}}",
        "A=(1 2)\nvllm serve m ${{A[@]:{}}}",
        "A=12\nvllm serve m --tensor-parallel-size ${{A:{}}}",
        "set -- 1 2\nshift {}\nvllm serve m --tensor-parallel-size $1",
        "vllm serve Qwen/Qwen3-{}x{}B",
    ],
)
def test_launch_files(tmp_path: Path, script: str, number: str) -> None:
    load()
    (tmp_path / "run.sh").write_text(script.replace("{}", number).replace("{{", "{").replace("}}", "}"), "utf-8")
    assert ended(("show", "launch", "run.sh"), tmp_path) in {0, 2}


VERSION = '"weight_version": "6"', '"weight_version": "%s"'
LOGS = {
    "a version": ("sglang/generate.jsonl", *VERSION),
    "a version that is a number": ("sglang/generate.jsonl", VERSION[0], '"weight_version": %s'),
    "a step": ("moeparity/log.jsonl", '"step": 7', '"step": %s'),
    "a temperature": ("moeparity/log.jsonl", '"temperature": 1.0', '"temperature": %s'),
    "tokens as ids": ("openai/completions.jsonl", '"x","x"', '"token_id:%s","token_id:1"'),
    "the step of a file": ("nemo-rl/train_data_step7.jsonl", "", ""),
}


@pytest.mark.parametrize("number", [LONG, "9" * 20, "9" * 200])
@pytest.mark.parametrize("case", LOGS)
def test_logs(tmp_path: Path, case: str, number: str) -> None:
    load()
    name, old, new = LOGS[case]
    file = Path(name).name if old else f"train_data_step{number[:200]}.jsonl"
    text = (FIXTURES / name).read_text("utf-8")
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new.replace("%s", number)) if old else text, "utf-8")
    assert ended(("metrics", file), tmp_path) in {0, 2}


@pytest.mark.parametrize("number", [LONG, "9" * 20, "²", f"{2**62}x{2**62}"])
def test_routes(tmp_path: Path, number: str) -> None:
    load()
    line = {"input_ids": [5, 6], "routed_experts": f"nrlre1:int32:{number}x2x2:AAAA"}
    for file in ("a.jsonl", "b.jsonl"):
        (tmp_path / file).write_text(json.dumps(line) + "\n", "utf-8")
    assert ended(("diff", "a.jsonl", "b.jsonl"), tmp_path) == 2


@pytest.mark.parametrize("columns", [LONG, "9" * 20, "²", "0"])
def test_columns(tmp_path: Path, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load()
    # Set back before the test ends: pytest asks for the width too, to write how far it is.
    with monkeypatch.context() as environment:
        environment.setenv("COLUMNS", columns)
        assert ended(("show", "engines", "vllm"), tmp_path) == 0


def test_seeds(tmp_path: Path) -> None:
    load()
    shutil.copytree(BASE, tmp_path, dirs_exist_ok=True)
    recipe = (tmp_path / "recipe.yaml").read_text("utf-8")
    (tmp_path / "recipe.yaml").write_text(f"{recipe}weights: synthetic({LONG})\n", "utf-8")
    assert ended(("show", "plan", "recipe.yaml"), tmp_path) == 2


def ended(arguments: tuple[str, ...], folder: Path) -> int | None:
    """The exit code of a command that holds the contract of hostile inputs."""
    done = run(arguments, folder)
    assert breach(done) is None, done.errors
    return done.code
