"""A pytest plugin that writes each test's CPU seconds: `PYTHONPATH=benchmarks/suite pytest -n0 -p per_test`.

SUITE_TIMES names the file: for each test a line, a JSON list of its node id and its seconds, user and system, of this
process and of whatever it started, also of processes that live on (a warm server's forks are the test's that asked for
them). A fixture that several tests share is counted where it is made. Kept free of moeparity: it runs in any commit's
tests.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

TICKS = os.sysconf("SC_CLK_TCK")
STARTING = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"}


class Tree:
    """This process and its living descendants, which are looked for when something was started."""

    def __init__(self) -> None:
        self.living: list[str] = []
        self.has_started = False
        sys.addaudithook(self._heard)

    def _heard(self, event: str, _: tuple[Any, ...]) -> None:
        if event in STARTING:
            self.has_started = True

    def seconds(self) -> float:
        """User and system, since each process began; of what was waited for, too."""
        if self.has_started:
            self.living = _descendants(str(os.getpid()))
            self.has_started = False
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        living = sum(sum(map(int, fields[11:15])) for fields in map(_stat, self.living) if fields)
        return time.process_time() + ended.ru_utime + ended.ru_stime + living / TICKS


def _stat(process: str) -> list[str]:
    """The fields of a process behind its name, none where it has ended."""
    try:
        return Path("/proc", process, "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _descendants(process: str) -> list[str]:
    children: dict[str, list[str]] = {}
    for number in filter(str.isdigit, (entry.name for entry in Path("/proc").iterdir())):
        for parent in _stat(number)[1:2]:
            children.setdefault(parent, []).append(number)
    below = list(children.get(process, ()))
    for child in below:
        below += children.get(child, ())
    return below


TREE = Tree()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Count whatever a test takes, its fixtures and reports too."""
    before = TREE.seconds()
    try:
        return (yield)
    finally:
        with Path(os.environ["SUITE_TIMES"]).open("a", encoding="utf-8") as times:
            times.write(json.dumps([item.nodeid, TREE.seconds() - before]) + "\n")
