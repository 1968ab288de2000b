"""Two tiers: by default a set of tests that covers everything in minutes; with `--all` every test.

`held_back.json` names what only `--all` runs; `python -m tests.tiers` works it out. `--rest` runs these alone, behind a
default run. A test that is named on the command line, or lies in a folder that is, runs in any case.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

HELD_BACK = Path(__file__).parent / "held_back.json"


def add_option(parser: pytest.Parser) -> None:
    """`--all` and `--rest`."""
    parser.addoption("--all", action="store_true", help="Run every test, not only those that cover everything once.")
    parser.addoption("--rest", action="store_true", help="Run the tests that a run without --all leaves out.")


def hold_back(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only `--all` runs, or with `--rest` everything else, unless tests were named."""
    if config.getoption("--all") or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    by_file = json.loads(HELD_BACK.read_text("utf-8"))["tests"]
    names = {f"{file}::{name}" for file, tests in by_file.items() for name in tests}
    rest = bool(config.getoption("--rest"))
    config.hook.pytest_deselected(items=[item for item in items if (item.nodeid in names) != rest])
    items[:] = [item for item in items if (item.nodeid in names) == rest]
