"""Suites of two commits are matched test by test, and a test's seconds are those of its processes too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.suite.compare import Suite, matched, table

PLUGIN = Path(__file__).parents[2] / "benchmarks" / "suite"
TESTS = """
import subprocess, sys, time

BURN = "import time\\nwhile time.process_time() < {}: pass"
LEFT = []

def test_waits():
    time.sleep(0.2)

def test_starts():
    subprocess.run([sys.executable, "-S", "-c", BURN.format(0.3)], check=True)

def test_leaves():
    LEFT.append(subprocess.Popen([sys.executable, "-S", "-c", BURN.format(0.3) + "\\nprint(flush=True)\\ninput()"],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    LEFT[0].stdout.readline()

def test_ends():
    LEFT[0].communicate()
"""


def test_a_test_is_charged_with_what_its_processes_took(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    times = tmp_path / "times.jsonl"
    environment = {**os.environ, "PYTHONPATH": str(PLUGIN), "SUITE_TIMES": str(times)}
    plugins = ("-p", "per_test", "-p", "no:cacheprovider", "-p", "no:xdist")
    command = [sys.executable, "-m", "pytest", "-q", *plugins, "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    seconds = {test.partition("::")[2]: took for test, took in map(json.loads, times.read_text().splitlines())}
    assert seconds["test_waits"] < 0.15
    assert seconds["test_starts"] >= 0.3
    # One that lives on was at work in the test that started it, and is not counted again where it ends.
    assert seconds["test_leaves"] >= 0.28
    assert seconds["test_ends"] < 0.15


def test_tests_are_matched_where_they_stayed_and_where_they_went() -> None:
    before = {"tests/a/test_x.py::test_1[p]": 4.0, "tests/a/test_x.py::test_2": 2.0, "tests/test_y.py::test_3": 1.0}
    after = {"tests/b/test_z.py::test_1[p]": 1.0, "tests/a/test_x.py::test_2": 1.0, "tests/a/test_x.py::test_1[q]": 8.0}
    assert matched(before, after) == {
        "tests/a/test_x.py::test_1[p]": "tests/b/test_z.py::test_1[p]",
        "tests/a/test_x.py::test_2": "tests/a/test_x.py::test_2",
    }
    suites = [
        Suite(commit=name, begun="today", outcome="passed", seconds=seconds, tests=tests)
        for name, seconds, tests in (("old", 8.0, before), ("new", 11.0, after))
    ]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table(*suites).splitlines()[5:]]
    assert rows == [
        ["whole suite", "3 / 3", "8.0", "11.0", "1.38"],
        ["tests of both (1 in another file)", "2", "6.0", "2.0", "0.33"],
        ["only before", "1", "1.0", "0.0", ""],
        ["only after", "1", "0.0", "8.0", ""],
        ["collection, start and end", "", "1.0", "1.0", "1.00"],
        ["tests/*.py", "1 / 0", "1.0", "0.0", ""],
        ["tests/a", "2 / 2", "6.0", "9.0", "1.50"],
        ["tests/b", "0 / 1", "0.0", "1.0", ""],
    ]


def test_a_name_that_several_files_have_is_matched_only_where_it_stayed() -> None:
    before = ["tests/a.py::test_1", "tests/b.py::test_1"]
    assert matched(before, ["tests/b.py::test_1", "tests/c.py::test_1"]) == {
        "tests/b.py::test_1": "tests/b.py::test_1",
        "tests/a.py::test_1": "tests/c.py::test_1",
    }
    assert matched(before, ["tests/c.py::test_1", "tests/d.py::test_1"]) == {}
