"""Every bad input gets exactly one message, exit code 2 and no traceback; the messages are kept in tests/bad/messages.

After a change of wording, `UPDATE_SNAPSHOTS=1 pytest tests/errors/test_messages.py` writes them anew: read each one.
"""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import moeparity
from moeparity import errors
from moeparity.bisection.outline import outline_recipe
from moeparity.engine.forward import forward
from moeparity.inputs.tokens import read_tokens
from tests.command import alone, inside
from tests.errors import cases
from tests.errors.base import BAD, BASE, TOKENS
from tests.inputs.tokens.test_routelog import refusals

MESSAGES = BAD / "messages"
UPDATE = os.environ.get("UPDATE_SNAPSHOTS") == "1"
PACKAGE = Path(moeparity.__file__).resolve().parent
CHECKED = (
    *("plan", "inputs", "engine/forward.py", "ops/registry.py", "paths.py"),
    "evidence/maps",
    *("bisection/init", "bisection/sample.py", "bisection/prepare.py", "bisection/outline.py"),
)

BESIDE = ("so nothing can be sampled under", "the prefix cache would find sampled tokens")
"""What messages say that tests/hf/test_sampling.py reaches: these come up while tokens are sampled."""

STATUS = "ERROR   1 recipe held to what it expects, 1 recipe could not be checked; exit 2\n"
UNCHECKED = f"{STATUS}\n{STATUS}"
"""What `check` prints, first and last, of a recipe that it could not look at."""

# As a user runs them, in a process of their own: one of each kind of input, as `test_message` runs the same `main`.
# All but the last without loading torch, which is quick.
SUBPROCESSES = [
    "recipe-unknown-key",
    # How deep the interpreter's own stack is when a command runs is not how deep it is in a test.
    "recipe-nested-too-deeply",
    "profile-conflict",
    "checkpoint-config-not-json",
    "cli-show-nothing-there",
    "tokens-above-the-vocabulary",
]

Run = Callable[[str], cases.Outcome]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Each bad input is run once in this process, whichever test asks."""
    outcomes: dict[str, cases.Outcome] = {}

    def once(name: str) -> cases.Outcome:
        if name not in outcomes:
            outcomes[name] = cases.run(name, tmp_path_factory.mktemp("bad", numbered=True))
        return outcomes[name]

    return once


@pytest.mark.parametrize("name", cases.names())
def test_message(name: str, run: Run) -> None:
    outcome = run(name)
    snapshot = MESSAGES / f"{name}.txt"
    if UPDATE:
        snapshot.write_text(outcome.message, "utf-8")
    assert outcome.code == 2
    # `check` counts what it could not look at.
    assert outcome.printed == (UNCHECKED if name.startswith("cli-check-") else "")
    assert outcome.message.startswith("error: ")
    assert outcome.message.count("\n") == 1
    assert outcome.message == snapshot.read_text("utf-8")


@pytest.mark.parametrize("name", SUBPROCESSES)
def test_message_of_the_command(name: str, tmp_path: Path) -> None:
    command = cases.command(name, tmp_path)
    assert command is not None
    done = alone(*command, cwd=BAD)
    assert done.returncode == 2
    assert not done.stdout
    assert cases.normalised(done.stderr, tmp_path) == (MESSAGES / f"{name}.txt").read_text("utf-8")


def test_every_bad_input_has_a_message_and_every_message_an_input() -> None:
    assert {path.stem for path in MESSAGES.iterdir()} == set(cases.names())


def test_names_are_used_once() -> None:
    assert len(cases.names()) == len(set(cases.names()))


def test_the_base_itself_is_good() -> None:
    assert outline_recipe(BASE / "recipe.yaml").toggles
    assert forward(BASE, read_tokens(BASE / TOKENS).input_ids, device="cpu")["logits"].isfinite().all()


@pytest.mark.parametrize("option", [("--micro-batch", "0"), ("--micro-batch", "two"), ("--profil", "hf-eager")])
def test_a_malformed_option_is_told_with_exit_code_2(option: tuple[str, str]) -> None:
    done = inside(*cases.FORWARD, "--out", "x", *option, cwd=BAD)
    assert done.returncode == 2
    assert option[0] in done.stderr
    assert "Traceback" not in done.stderr


def test_no_message_goes_untested(run: Run, tmp_path: Path) -> None:
    """Every `raise` of a user's error is reached by some bad input."""
    raised = {outcome.raised for outcome in map(run, cases.names())}
    # Files of recorded routes have their messages beside them.
    raised |= {cases.raised_at(error) for error in refusals(tmp_path)}
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
    parts = [PACKAGE / part for part in CHECKED]
    return [
        (path, range(node.lineno, (node.end_lineno or node.lineno) + 1))
        for part in parts
        for path in (sorted(part.rglob("*.py")) if part.is_dir() else [part])
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Raise) and _names_one_of(node.exc, kinds)
        if not any(text in ast.unparse(node) for text in BESIDE)
    ]


def _names_one_of(raised: ast.expr | None, kinds: set[str]) -> bool:
    return isinstance(raised, ast.Call) and isinstance(raised.func, ast.Name) and raised.func.id in kinds
