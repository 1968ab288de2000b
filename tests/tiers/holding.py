"""Two tiers: by default a set of tests that covers everything in minutes; with `--all` every test.

`held_back.json` names the functions of which only some tests run by default, and these; `python -m tests.tiers` works
it out. `--rest` runs the others alone, behind a default run. A test that is named on the command line, or lies in a
folder that is, runs in any case.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

FILE = Path(__file__).parent / "held_back.json"
BEGUN = "TESTS_BEGUN"
"""The variable that says when a run began, in seconds."""
_ABOUT = (
    "Written by `python -m tests.tiers`: of these functions only the tests with these parameters run by default, since "
    "others cover the same choices, models, commands, bad files and nearly all lines, and they take long; and tests of "
    "engines to be installed."
)


@dataclass(frozen=True)
class HeldBack:
    """The tests that only `--all` runs, as functions (`file::name`), each with the parameters that run by default."""

    running: Mapping[str, frozenset[str]]

    @classmethod
    def read(cls) -> HeldBack:
        """As the file has it."""
        by_file = json.loads(FILE.read_text("utf-8"))["running"]
        return cls({f"{file}::{name}": frozenset(ids) for file, of in by_file.items() for name, ids in of.items()})

    def __contains__(self, test: object) -> bool:
        """Whether a test, by its id, is held back."""
        function, parameters = _parts(str(test))
        return function in self.running and parameters not in self.running[function]

    def chosen(self, default: Iterable[str], held_back: Iterable[str]) -> HeldBack:
        """With these tests run by default and those held back; what is said of other functions stays."""
        by_function: dict[str, set[str]] = {}
        for function, parameters in map(_parts, default):
            by_function.setdefault(function, set()).add(parameters)
        functions = {function for function, _ in map(_parts, held_back)}
        again = {function: frozenset(by_function.get(function, ())) for function in functions}
        return HeldBack(
            {function: frozenset(by_function.get(function, ids)) for function, ids in self.running.items()} | again
        )

    def without(self, tests: Iterable[str]) -> HeldBack:
        """With these tests run by default too."""
        running = dict(self.running)
        for function, parameters in map(_parts, tests):
            running[function] = running.get(function, frozenset()) | {parameters}
        return HeldBack(running)

    def write(self) -> None:
        """Into the file: by file and function, sorted."""
        by_file: dict[str, dict[str, list[str]]] = {}
        for function, parameters in sorted(self.running.items()):
            file, _, name = function.partition("::")
            by_file.setdefault(file, {})[name] = sorted(parameters)
        FILE.write_text(json.dumps({"about": _ABOUT, "running": by_file}, indent=1, ensure_ascii=False) + "\n", "utf-8")


def _parts(test: str) -> tuple[str, str]:
    """A test's function and its parameters; no parameters are an empty text."""
    function, _, parameters = test.partition("[")
    return function, parameters.removesuffix("]")


def add_options(parser: pytest.Parser) -> None:
    """`--all`, `--rest` and `--minutes`."""
    # Workers have it of the process that starts them.
    os.environ.setdefault(BEGUN, str(time.time()))
    parser.addoption("--all", action="store_true", help="Run every test, not only those that cover everything once.")
    parser.addoption("--rest", action="store_true", help="Run the tests that a run without --all leaves out.")
    parser.addoption(
        "--minutes", type=float, help="Begin no test after so many minutes; files come in another order each day."
    )


def hold_back(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only `--all` runs, or with `--rest` everything else, unless tests were named."""
    if not config.getoption("--all") and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        held_back, rest = HeldBack.read(), bool(config.getoption("--rest"))
        config.hook.pytest_deselected(items=[item for item in items if (item.nodeid in held_back) != rest])
        items[:] = [item for item in items if (item.nodeid in held_back) == rest]
    if config.getoption("--minutes") is not None:
        files = list(dict.fromkeys(item.path for item in items))
        day = datetime.fromtimestamp(float(os.environ[BEGUN]), UTC).date()
        random.Random(day.isoformat()).shuffle(files)  # noqa: S311
        rank = {file: number for number, file in enumerate(files)}
        items.sort(key=lambda item: rank[item.path])


def refuse_late(config: pytest.Config) -> None:
    """Skip the test that is about to begin where the minutes of the run are over."""
    minutes = config.getoption("--minutes")
    if minutes is not None and time.time() - float(os.environ[BEGUN]) > 60 * minutes:
        pytest.skip(f"not run: the {minutes:g} minutes are over")
