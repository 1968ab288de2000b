"""The contract where streams, homes, folders, limits and outputs are not as they should be; `python -m tests.hostile
--kind environment` tries all of it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from moeparity.bisection.runs.folder import RunFolder
from tests.hostile import scene
from tests.hostile.contract import console, run, start
from tests.hostile.environment import SITUATIONS, try_situation
from tests.hostile.kills import try_kill, try_run_kill
from tests.warm import load

QUICK = (
    "metrics: stdin closed, stdout closed, stderr closed",
    "metrics: stdin closed, stdout unread, stderr full",
    "metrics: stdin kept, stdout full, stderr kept",
    "another user's HOME: split",
    "the cache is a name too long: split",
    "metrics into mine of a read-only folder",
    "metrics into read-only of a read-only folder",
    "metrics locked/log.jsonl without rights",
    "metrics in a folder that is gone",
    "a process begins in a folder that is gone",
    "files of 100 bytes at most: metrics log.jsonl --json=report.json",
    "0 MiB of memory: metrics log.jsonl --json=report.json",
    "a process of 30 MiB",
    "3 open files: metrics log.jsonl --json=report.json",
    "C: show",
    "4 at once: split",
    "check to 'recipe.yaml'",
    "flips to one file twice",
    "init to '.'",
    "init to 'config.json'",
    "probe to 'adding.py'",
    "engines of two to 'profile.yaml'",
    "engines of two to 'new.json'",
    "metrics to 'pipe'",
    "metrics to 'circle'",
    "metrics to 'a name of 5000'",
    "metrics to '/proc/self/mem'",
    "metrics to -",
    r"metrics to '\x1b]0;owned\x07.json'",
    "bisect html to 'link'",
    "metrics html to 'new.html'",
    "bisect markdown to '.'",
    "bisect markdown to 'new.md'",
    "check baseline to 'new.json'",
    "check baseline to '/dev/null'",
)


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    load()


@pytest.mark.parametrize("name", QUICK)
def test_no_situation_breaks_the_contract(name: str) -> None:
    (number,) = [number for number, situation in enumerate(SITUATIONS) if situation.name == name]
    trials = list(try_situation(number))
    assert trials
    for trial in trials:
        assert trial.breach is None, f"{trial.breach}: {trial.says}"


@pytest.mark.parametrize("number", [1, 5, 12, 14, 34, 60])
def test_a_kill_leaves_nothing_that_the_next_run_does_not_mend(number: int) -> None:
    for trial in try_kill(number):
        assert trial.breach is None, f"{trial.case}: {trial.breach}: {trial.says}"


@pytest.mark.parametrize("number", [0, 3, 7])
def test_a_killed_run_of_a_folder_ends_as_if_nobody_had_killed_it(number: int) -> None:
    for trial in try_run_kill(number, "kept"):
        assert trial.breach is None, f"{trial.case}: {trial.breach}: {trial.says}"


def test_of_two_runs_at_once_on_one_folder_one_refuses(tmp_path: Path) -> None:
    scene.make(tmp_path)
    words = ("bisect", "split.yaml", "--device", "cpu", "--run=kept")

    def waiting() -> None:
        """The console script, which waits in the midst of the run."""
        admit = RunFolder.admit

        def late(self: RunFolder, *arguments: Any, **options: Any) -> None:
            admit(self, *arguments, **options)
            (tmp_path / "begun").touch()
            while not (tmp_path / "go on").exists():
                time.sleep(0.01)

        RunFolder.admit = late  # type: ignore[method-assign]
        console()

    first = start(words, tmp_path, waiting)
    while not (tmp_path / "begun").exists():
        time.sleep(0.01)
    before = scene.state(tmp_path / "kept")
    second = run(words, tmp_path)
    assert second.code == 2
    assert f"error: --run kept: process {first.child} on " in second.errors
    assert scene.state(tmp_path / "kept") == before
    (tmp_path / "go on").touch()
    ended = first.end()
    assert ended.code == 3, ended.errors
    assert run(("runs", "show", "kept"), tmp_path).output == ended.output


def test_what_a_command_may_not_do_is_seen(tmp_path: Path) -> None:
    scene.make(tmp_path)
    before, output = scene.state(tmp_path), tmp_path / "report.json"

    def difference() -> str:
        return str(scene.difference(before, scene.state(tmp_path), [output]))

    assert difference() == "None"
    output.write_text("{}\n", "utf-8")
    assert difference() == f"{output} is not whole: it holds nothing"
    output.write_text('{"a": ', "utf-8")
    assert "is not whole: JSONDecodeError" in difference()
    page = tmp_path / "page.html"
    page.write_text('<script id="data">{"a"</script></html>', "utf-8")
    assert "is not whole: JSONDecodeError" in str(scene.difference(before, scene.state(tmp_path), [output, page]))
    page.write_text('<script id="data">{}</script>', "utf-8")
    assert "no end of the page" in str(scene.difference(before, scene.state(tmp_path), [output, page]))
    page.unlink()
    output.write_text('{"a": 1}', "utf-8")
    assert difference() == "None"
    (tmp_path / ".moeparity-x.json").touch()
    assert difference() == f"{tmp_path}/.moeparity-x.json is left"
    (tmp_path / ".moeparity-x.json").unlink()
    (tmp_path / "config.json").unlink()
    assert difference() == f"{tmp_path}/config.json is gone"
    (tmp_path / "config.json").write_text("{}", "utf-8")
    assert difference() == f"{tmp_path}/config.json is changed"
    assert scene.leavings(tmp_path) is None
    (tmp_path / "moeparity" / "passes").mkdir(parents=True)
    (tmp_path / "moeparity" / "passes" / "0.safetensors").touch()
    assert scene.leavings(tmp_path) == f"{tmp_path}/moeparity/passes/0.safetensors is left"
