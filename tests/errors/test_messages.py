"""Every bad input gets exactly one message, exit code 2 and no traceback; the messages are kept in tests/bad/messages.

After a change of wording, `UPDATE_SNAPSHOTS=1 pytest tests/errors/test_messages.py` writes them anew: read each one.
"""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import moeparity
from moeparity import errors
from tests.errors import cases
from tests.errors.base import BAD

MESSAGES = BAD / "messages"
UPDATE = os.environ.get("UPDATE_SNAPSHOTS") == "1"
PACKAGE = Path(moeparity.__file__).resolve().parent
CHECKED = (
    *("spec", "graph", "weights"),
    *("tokens.py", "model.py", "plan.py", "outline.py", "engine/device.py", "ops/registry.py"),
)

# As a user runs them, in a process of their own: mostly `show`, which is quick, and some that load torch.
SUBPROCESSES = [
    "recipe-unknown-key",
    "recipe-repeated-key",
    "recipe-unquoted-selector",
    "recipe-billion-laughs",
    "recipe-not-utf8",
    "recipe-wrong-type",
    "recipe-set-bad-value",
    "recipe-nested-too-deeply",
    "profile-unknown-op",
    "profile-conflict",
    "checkpoint-config-not-json",
    "checkpoint-missing-field",
    "cli-recipe-missing",
    "cli-op-unknown",
    "checkpoint-truncated-shard",
    "tokens-above-the-vocabulary",
]

Run = Callable[[str], cases.Outcome]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Each bad input is run once in this process, whichever test asks."""
    known: dict[str, cases.Outcome] = {}

    def once(name: str) -> cases.Outcome:
        if name not in known:
            known[name] = cases.run(name, tmp_path_factory.mktemp("bad", numbered=True))
        return known[name]

    return once


@pytest.mark.parametrize("name", cases.names())
def test_message(name: str, run: Run) -> None:
    outcome = run(name)
    kept = MESSAGES / f"{name}.txt"
    if UPDATE:
        kept.write_text(outcome.message, "utf-8")
    assert outcome.code == 2
    assert outcome.message.startswith("error: ")
    assert outcome.message.count("\n") == 1
    assert outcome.message == kept.read_text("utf-8")


@pytest.mark.parametrize("name", SUBPROCESSES)
def test_message_of_the_command(name: str, tmp_path: Path) -> None:
    command = cases.command(name, tmp_path)
    assert command is not None
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-m", "moeparity.cli", *map(str, command)],
        cwd=BAD,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert not done.stdout
    assert cases.normalised(done.stderr, tmp_path) == (MESSAGES / f"{name}.txt").read_text("utf-8")


def test_every_bad_input_has_a_message_and_every_message_an_input() -> None:
    assert {path.stem for path in MESSAGES.iterdir()} == set(cases.names())


def test_names_are_used_once() -> None:
    assert len(cases.names()) == len(set(cases.names()))


def test_the_base_itself_is_good(tmp_path: Path) -> None:
    for arguments in (("show", cases.RECIPE), (*cases.FORWARD, "--out", tmp_path / "out.safetensors")):
        command = [sys.executable, "-m", "moeparity.cli", *map(str, arguments)]
        subprocess.run(command, cwd=BAD, check=True, capture_output=True)


@pytest.mark.parametrize("option", [("--micro-batch", "0"), ("--micro-batch", "two"), ("--profil", "hf-eager")])
def test_a_malformed_option_is_told_with_exit_code_2(option: tuple[str, str]) -> None:
    command = [sys.executable, "-m", "moeparity.cli", *map(str, cases.FORWARD), "--out", "x", *option]
    done = subprocess.run(command, cwd=BAD, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert option[0] in done.stderr
    assert "Traceback" not in done.stderr


def test_no_message_goes_untested(run: Run) -> None:
    """Every `raise` of a user's error is reached by some bad input."""
    raised = {outcome.raised for outcome in map(run, cases.names())}
    untested = [
        f"{path.relative_to(PACKAGE)}:{lines.start}"
        for path, lines in _raises()
        if not any(at is not None and at[0] == path and at[1] in lines for at in raised)
    ]
    assert not untested


def _raises() -> list[tuple[Path, range]]:
    """File and lines of each `raise SomeMoeparityError(...)` in the checked part of the package."""
    kinds = {
        name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, errors.MoeparityError)
    }
    found = []
    for part in CHECKED:
        at = PACKAGE / part
        for path in sorted(at.rglob("*.py")) if at.is_dir() else [at]:
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                call = node.exc if isinstance(node, ast.Raise) else None
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in kinds:
                    assert node.end_lineno is not None
                    found.append((path, range(node.lineno, node.end_lineno + 1)))
    return found
