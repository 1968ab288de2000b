"""A run's folder: what it keeps, that it is read back as it was, whose it is, and what is told of a bad one."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from moeparity.bisection.observe import observe
from moeparity.bisection.options import Options
from moeparity.bisection.pipeline import bisect
from moeparity.bisection.report import Report
from moeparity.bisection.runs.file import LOCK, NAME, read_run
from moeparity.bisection.runs.results import read_report
from moeparity.bisection.runs.show import runs_below
from moeparity.errors import MoeparityError, RunError
from tests.command import inside
from tests.errors.base import BASE, TOKENS

KEPT = ["plan.json", "recipe.yaml", "report.json", "run.json"]
COMMANDS: dict[str, tuple[str, ...]] = {
    "bisect": ("bisect", "recipe.yaml"),
    "sweep": ("sweep", "recipe.yaml", "--over", "micro_batch=1,2"),
    "flips": ("flips", "recipe.yaml"),
    "mine": ("flips", "recipe.yaml", "--mine", TOKENS),
}


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with patch.dict(os.environ, {"MOEPARITY_CACHE": str(tmp_path_factory.mktemp("cache"))}):
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    shutil.copytree(BASE, folder, dirs_exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def whole(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    bisect(base / "recipe.yaml", device="cpu", run=folder)
    return folder


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != LOCK}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_is_kept_and_printed_again(command: str, base: Path, tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    words = (*COMMANDS[command], "--device", "cpu", "--run", run)
    first = inside(*words, "--json", tmp_path / "first.json", cwd=base)
    assert sorted(path.name for path in (tmp_path / "run").glob("*.*") if path.name != LOCK) == KEPT
    run_files = files(tmp_path / "run")
    assert run_files["recipe.yaml"] == (base / "recipe.yaml").read_bytes()
    assert run_files["report.json"] == (tmp_path / "first.json").read_bytes()

    again = inside("runs", "show", tmp_path / "run", "--json", tmp_path / "again.json")
    assert (again.returncode, again.stdout, again.stderr) == (first.returncode, first.stdout, "")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "first.json").read_bytes()

    once_more = inside(*words, cwd=base)
    assert (once_more.returncode, once_more.stdout) == (first.returncode, first.stdout)
    assert "finished at" in once_more.stderr
    assert "nothing was run" in once_more.stderr
    assert files(tmp_path / "run") == run_files


def test_a_report_is_read_back_as_it_was(base: Path, tmp_path: Path) -> None:
    report = bisect(base / "recipe.yaml", device="cpu", run=tmp_path / "run")
    again = read_report(tmp_path / "run")
    assert again == report
    assert again.verdict.value.sequences == report.verdict.value.sequences > 0  # not in the JSON


def test_another_run_is_refused_and_told_apart(run: Path, base: Path, tmp_path: Path) -> None:
    run_files = files(run)
    copied_run = Path(shutil.copytree(base, tmp_path / "other"))
    text = (copied_run / "recipe.yaml").read_text("utf-8")
    (copied_run / "recipe.yaml").write_text(text.replace("below: 1e-4", "below: 1e-5"), "utf-8")
    with pytest.raises(RunError, match=r"it holds another run .* Not the same: the recipe.* the weights.*Nothing was"):
        bisect(copied_run / "recipe.yaml", device="cpu", run=run)
    done = inside("sweep", base / "recipe.yaml", "--over", "micro_batch=1", "--device", "cpu", "--run", run)
    assert (done.returncode, done.stderr) == (
        2,
        f"error: --run {run}: it holds a run of `bisect`. Name another folder.\n",
    )
    assert files(run) == run_files


def test_another_machine_is_told(run: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_PROC_BIND", "close")
    with pytest.raises(RunError, match=r"Not the same: the machine or its settings"):
        bisect(base / "recipe.yaml", device="cpu", run=run)


@pytest.mark.parametrize("name", ["notes.txt", "recipe.yaml", "passes"])
def test_a_folder_of_something_else_keeps_all_it_had(name: str, base: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).write_text("mine", "utf-8")
    with pytest.raises(RunError, match=rf"it holds '{name}' and no run.json"):
        bisect(base / "recipe.yaml", device="cpu", run=tmp_path / "mine")
    assert {path.name: path.read_text("utf-8") for path in (tmp_path / "mine").iterdir()} == {name: "mine"}


def test_a_recipe_that_cannot_run_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("kind: recipe\n", "utf-8")
    with pytest.raises(MoeparityError):
        bisect(tmp_path / "broken.yaml", run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_two_at_once_one_refuses(run: Path, base: Path) -> None:
    run_files = files(run)
    with (run / LOCK).open("r+b") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        words = ("bisect", base / "recipe.yaml", "--device", "cpu", "--run", run)
        done = inside(*words)
        assert done.returncode == 2
        assert f"error: --run {run}: process {os.getpid()} on " in done.stderr
        assert "is at work in it. Wait until it has ended, or name another folder." in done.stderr
        data = json.loads((run / NAME).read_bytes())
        (run / NAME).write_text(json.dumps({**data, "finished": None}), "utf-8")
        assert [row.state[:7] for row in runs_below(run.parent)] == ["process"]
    (run / NAME).write_bytes(run_files[NAME])
    assert files(run) == run_files


def test_users_functions_are_never_taken_for_the_same(base: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(base, tmp_path / "own"))
    (folder / "own.py").write_text("def norm(x, *, node):\n    return x * 1.0\n", "utf-8")
    text = (folder / "recipe.yaml").read_text("utf-8")
    function = '{profile: hf-default, impl: [{nodes: norm, call: "own:norm"}]}'
    (folder / "recipe.yaml").write_text(text.replace("{profile: hf-default}", function), "utf-8")
    options = Options(attribution=False, allow_code=True)

    def run() -> Report:
        return bisect(folder / "recipe.yaml", device="cpu", options=options, run=tmp_path / "run")

    first = run()
    with pytest.raises(RunError, match="a finished run of users' functions"):
        run()
    assert read_report(tmp_path / "run") == first


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def one_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def gone(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("spoil", [emptied, halved, one_bit, gone])
@pytest.mark.parametrize("name", ["report.json", "plan.json", "recipe.yaml", "result"])
def test_a_damaged_run_is_told_in_one_line(name: str, spoil: Callable[[Path], None], run: Path, whole: Path) -> None:
    file = str(read_run(run).result) if name == "result" else name
    spoil(run / file)
    before = files(run)
    done = inside("runs", "show", run) if name == "result" else inside("diff", whole, run)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: {run / file}: ")
    assert done.stderr.count("\n") == 1
    assert files(run) == before


def changed(**update: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        data = json.loads(path.read_bytes())
        path.write_text(json.dumps({**data, **update}), "utf-8")

    return change


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (emptied, "damaged: it is no JSON object with a schema"),
        (halved, "damaged: it is no JSON object with a schema"),
        (lambda path: path.write_text("[1]", "utf-8"), "damaged: it is no JSON object with a schema"),
        (
            changed(schema="moeparity.report/2"),
            "it is no run's: its schema is 'moeparity.report/2', not moeparity.run/1",
        ),
        (changed(schema="moeparity.run/2"), "a newer moeparity wrote it (schema moeparity.run/2; this one reads up to"),
        (changed(parts=[1]), "damaged: parts: Input should be a valid dictionary"),
        (changed(finished=3), "damaged: finished: Input should be a valid string"),
        (changed(kind="dance"), "damaged: kind: Input should be 'bisect', 'sweep', 'flips' or 'mine'"),
        (gone, "no run is kept there: it has no run.json"),
    ],
)
def test_a_run_file_that_is_none(spoil: Callable[[Path], None], says: str, run: Path, base: Path) -> None:
    spoil(run / NAME)
    before = files(run)
    done = inside("runs", "show", run)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    again = inside("bisect", base / "recipe.yaml", "--device", "cpu", "--run", run)
    assert again.returncode == 2
    assert files(run) == before
    if spoil is not gone:
        (row,) = runs_below(run)
        assert says in row.state


def test_a_report_of_classes_that_have_changed_since_says_who_wrote_it(run: Path) -> None:
    with (
        patch("moeparity.bisection.runs.results.classes_of", return_value={}),
        pytest.raises(RunError, match=r"cannot read it back .* moeparity 0\.1\.0 wrote it, from source \w{16}; report"),
    ):
        read_report(run)


def test_fields_of_a_later_version_are_passed_over(run: Path) -> None:
    changed(mood="good")(run / NAME)
    assert inside("runs", "show", run).returncode == 3


def test_an_unfinished_run_says_how_to_go_on(base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with (
        patch("moeparity.bisection.pipeline.summarise", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        bisect(base / "recipe.yaml", device="cpu", run=folder)
    done = inside("runs", "show", folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        f"is not finished. The command that began it goes on with it: moeparity bisect {base}/recipe.yaml"
        in done.stderr
    )
    assert [row.state for row in runs_below(tmp_path)] == ["unfinished"]
    with patch("moeparity.bisection.pipeline.observe", wraps=observe) as observed:
        bisect(base / "recipe.yaml", device="cpu", run=folder)
    assert observed.call_count == 0
    assert [row.state for row in runs_below(tmp_path)] == ["finished"]


def test_the_list(whole: Path, tmp_path: Path) -> None:
    done = inside("runs", "list", whole.parent)
    assert done.returncode == 0
    line = " ".join(done.stdout.split())
    assert "inconclusive" in line
    assert "finished" in line
    assert inside("runs", "list", tmp_path).stdout.startswith("no runs in ")
    missing = inside("runs", "list", tmp_path / "nowhere")
    assert (missing.returncode, missing.stdout) == (2, "")


def test_a_folder_that_cannot_be_made(base: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", "utf-8")
    for name in ("file", "file/run", "x" * 300):
        with pytest.raises(RunError, match=r"cannot be used|there is no such folder"):
            bisect(base / "recipe.yaml", device="cpu", run=tmp_path / name)


def test_what_does_not_go_together(base: Path, tmp_path: Path) -> None:
    dry = inside("bisect", "recipe.yaml", "--dry-run", "--run", tmp_path / "run", cwd=base)
    assert "--dry-run makes no report for --run to write" in dry.stderr
    log = inside("diff", "a", "b", "--run", tmp_path / "run", cwd=base)
    assert (log.returncode, "No such option: --run" in log.stderr) == (2, True)
    assert not (tmp_path / "run").exists()
