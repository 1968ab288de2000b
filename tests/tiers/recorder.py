"""A pytest plugin that writes what each test covers and how long it takes; for `python -m tests.tiers record`.

Lines of product code go into a coverage data file of each worker, under the test's id, or under the name of a fixture
that several tests share. Choices go into a JSON line of each test: op, attribute and value; op, attribute and dtype;
models, profiles and commands.

Coverage slows tests down, some by half and some fivefold. `python -m tests.tiers time` therefore writes the times
alone, of a run without it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PLACE = "MOEPARITY_TESTS_RECORD"
"""The variable that names the folder, and in a test's own processes after a space the test."""
TIMED = "MOEPARITY_TESTS_TIME"
"""The variable that names the folder where times alone are wanted."""
_SOURCES = ["*/moeparity/*", "*/cli/*"]


def started(data_file: Path, context: str) -> Any:
    """A measurement of this process, under a name."""
    import coverage

    measured = coverage.Coverage(data_file=str(data_file), include=_SOURCES, config_file=False, messages=False)
    measured.start()
    measured.switch_context(context)
    return measured


def record_fork() -> None:
    """In a fork that a test asked for: measure it as a part of that test."""
    import atexit

    folder, _, test = os.environ[PLACE].partition(" ")
    measured = started(Path(folder) / f"fork-{os.getpid()}-{time.monotonic_ns()}.coverage", test)

    def end() -> None:
        measured.stop()
        measured.save()

    atexit.register(end)


class Timer:
    """Times the tests and shared fixtures of one worker."""

    def __init__(self, file: Path) -> None:
        self.of_fixtures = 0.0
        self.lines = file.open("w", encoding="utf-8")

    def begin(self, name: str) -> None:
        """What runs from here on belongs to this test or fixture; empty: to none."""

    def about(self, item: pytest.Item) -> dict[str, Any]:  # noqa: ARG002  (the recorder needs it)
        """What is written of a test beside its time."""
        return {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.of_fixtures = 0.0
        self.begin(item.nodeid)
        begun = time.perf_counter()
        try:
            return (yield)
        finally:
            seconds = time.perf_counter() - begun - self.of_fixtures
            self.begin("")
            self._write(test=item.nodeid, seconds=seconds, **self.about(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
        if fixturedef.scope == "function":
            return (yield)
        name = _name(fixturedef)
        self.begin(name)
        begun, inner = time.perf_counter(), self.of_fixtures
        try:
            return (yield)
        finally:
            # Without those that this one asked for.
            seconds = time.perf_counter() - begun - (self.of_fixtures - inner)
            self.of_fixtures += seconds
            self._write(fixture=name, seconds=seconds)
            # Back to whoever asked for it: the test, since fixtures of fixtures are shared alike.
            self.begin(request._pyfuncitem.nodeid)

    def _write(self, **line: Any) -> None:
        self.lines.write(json.dumps(line) + "\n")
        self.lines.flush()

    def pytest_sessionfinish(self) -> None:
        self.lines.close()


class Recorder(Timer):
    """Times the tests of one worker, and measures what each covers."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder / f"{name}.jsonl")
        self.folder = folder
        self.items: set[tuple[str, ...]] = set()
        self.measured = started(folder / f"{name}.coverage", "")
        self._watch()

    def begin(self, name: str) -> None:
        self.measured.switch_context(name)
        if name and not name.startswith("fixture ") and os.environ[PLACE] != f"{self.folder} {name}":
            self.items = set()
            os.environ[PLACE] = f"{self.folder} {name}"

    def about(self, item: pytest.Item) -> dict[str, Any]:
        return {"items": sorted(self.items), "fixtures": sorted({*_shared(item)})}

    def _watch(self) -> None:
        """See the choices that ops run with, and what is asked for."""
        import torch

        torch.set_num_threads(1)
        from moeparity.cli import commands
        from moeparity.engine import computation, visit  # noqa: F401
        from moeparity.ops.declaration import Op
        from moeparity.plan.bound import Plan

        settings, active = Op.settings, Plan.active

        def seen_settings(op: Any, values: Any) -> Any:
            self.items |= {("value", op.name, name, str(value)) for name, value in values.items()}
            return settings(op, values)

        def seen_active(plan: Any, node: Any) -> Any:
            choices = active(plan, node)
            dtype = plan.dtype_of(node.name)
            self.items |= {("dtype", node.op.name, name, dtype) for name in choices}
            self.items.add(("model", plan.graph.model_type))
            return choices

        setattr(Op, "settings", seen_settings)  # noqa: B010  (mypy refuses to assign a method)
        setattr(Plan, "active", seen_active)  # noqa: B010
        run = commands._exit_code

        def seen_run() -> int:
            words = [word for word in sys.argv[1:3] if word.isalpha()]
            self.items.add(("command", *words))
            return run()

        commands._exit_code = seen_run

    def pytest_sessionfinish(self) -> None:
        self.measured.stop()
        self.measured.save()
        super().pytest_sessionfinish()


def _shared(item: Any) -> Iterator[str]:
    """The fixtures of a test that others may share."""
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        for definition in definitions:
            if definition.scope != "function":
                yield _name(definition)


def _name(fixture: Any) -> str:
    return f"fixture {fixture.baseid}::{fixture.argname}"


def pytest_configure(config: pytest.Config) -> None:
    recorded, timed = (os.environ.get(name, "").partition(" ")[0] for name in (PLACE, TIMED))
    worker = getattr(config, "workerinput", {}).get("workerid")
    if not worker and config.getoption("numprocesses", None):
        return
    name = worker or "main"
    if recorded:
        config.pluginmanager.register(Recorder(Path(recorded), name), "recorder")
    elif timed:
        config.pluginmanager.register(Timer(Path(timed) / f"{name}.times"), "timer")
