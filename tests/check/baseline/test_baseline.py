"""`check --baseline` as CI meets it: what changed is named, what cannot be judged is no pass, `--update` writes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.check.baseline.project import RECIPE, Project, findings
from tests.command import inside

MACHINE = "moeparity.bisection.digests.measure.instruction_set"
GATE = "model.layers.0.mlp.gate.weight"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = Project.create(tmp_path_factory.mktemp("locked") / "project")
    done = project.check("--update")
    assert done.returncode == 0, done.stdout + done.stderr
    assert findings(done) == ["updated kept nothing so far; all of it is written"]
    return project.folder


@pytest.fixture
def project(locked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    # A line is what it is, however narrow a terminal.
    monkeypatch.setenv("COLUMNS", "400")
    shutil.copytree(locked, tmp_path / "project")
    return Project(tmp_path / "project")


def change_weight(project: Project, name: str, value: float) -> None:
    path = project.folder / "model" / "model.safetensors"
    weights = load_file(path)
    weights[name][0] = value
    save_file(weights, path)


def test_what_is_unchanged_passes_and_is_written_as_it_was(project: Project) -> None:
    before = project.lock.read_bytes()
    done = project.check()
    assert (done.returncode, findings(done)) == (0, []), done.stdout
    assert "ok kept bits of candidate 43 nodes" in " ".join(done.stdout.split())
    done = project.check("--update")
    assert (done.returncode, findings(done)) == (0, [])
    assert project.lock.read_bytes() == before


def test_a_lock_is_sorted_with_a_node_a_line(project: Project) -> None:
    lines = project.lock.read_text("utf-8").splitlines()
    server, trainer = (line for line in lines if line.startswith('     "layers[1].moe.combine": {'))
    assert '"accumulate": ["fp32", "read"]' in server
    assert '"accumulate": ["bf16", "verified"]' in trainer
    assert sum('"layers[1].moe.combine": "' in line for line in lines) == 2, "a digest for each side"
    nodes = [line.split('"')[1] for line in lines if line.startswith('     "layers[')]
    half = len(nodes) // 4
    assert nodes[:half] == sorted(nodes[:half])


def test_another_weight(project: Project) -> None:
    change_weight(project, GATE, 2.0)
    done = project.check()
    assert done.returncode == 1
    rows = findings(done)
    assert rows[-2:] == [
        "FAIL kept checkpoint another checkpoint: other weights in layers[0].moe.gate (1 of 23 nodes)",
        "not judged kept bits another checkpoint or other tokens: values cannot be compared",
    ]
    assert all(row.startswith("FAIL kept") and " at " in row for row in rows[:-2]), "budgets, where they are exceeded"


@pytest.mark.parametrize(
    ("setting", "choice"),
    [
        ("layers[0].moe.gate:output: fp32", "layers[0].moe.gate output: bf16 -> fp32"),
        ("layers[1].attention.o_proj:order: sequential", "layers[1].attention.o_proj order: native -> sequential"),
    ],
)
def test_another_choice_is_named_with_its_node(project: Project, setting: str, choice: str) -> None:
    name, _, value = setting.rpartition(": ")
    where = "candidate: {profile: ./server.yaml"
    project.change("a.parity.yaml", (where, f"{where}, set: {{'{name}': {value}}}"))
    done = project.check()
    rows = [row for row in findings(done) if " at most " not in row]
    node, words = choice.split(" ", 1)
    assert done.returncode == 1
    assert rows[0] == f"FAIL kept choices of candidate {choice}, set by a.parity.yaml:5 ({node})"
    # The sums of this order round to the same bf16 here, so that no bit is another.
    bits = [] if "sequential" in setting else [f"nodes have other bits, from {node} ({words}) on"]
    assert [row.partition(" of 43 ")[2] for row in rows[1:]] == bits, "the reference is as it was"
    assert all(row.startswith("FAIL kept bits of candidate ") for row in rows[1:])


def test_another_value_in_a_profile_is_one_line_for_all_its_nodes(project: Project) -> None:
    project.change("server.yaml", ("accumulate: fp32", "accumulate: bf16"))
    rows = findings(project.check())
    assert (
        "FAIL kept choices of candidate layers[0].moe.combine accumulate: fp32 -> bf16 and at 1 more node, set by "
        "server.yaml:5 (op combine)"
    ) in rows


def test_values_that_are_not_finite_keep_no_budget_and_say_so_in_the_lock(project: Project) -> None:
    change_weight(project, GATE, 3e38)
    project.change("a.parity.yaml", ("verdict: inconclusive", "verdict: fail"))
    assert project.check("--update").returncode == 0
    bits = next(iter(project.read_lock()["recipes"]["a.parity.yaml"]["machines"].values()))
    assert bits["candidate"]["layers[0].moe.gate"].endswith(" not finite")
    assert not bits["candidate"]["layers[0].moe.norm"].endswith(" not finite")
    done = project.check()
    assert done.returncode == 1
    assert any(row.endswith(" nan") and row.startswith("FAIL kept k3 at most") for row in findings(done))
    assert not any("kept bits" in row for row in findings(done)), "the same NaNs are the same bits"


# -- several recipes, and locks that cannot be judged ----------------------------------------------------------------


def test_two_recipes_in_one_lock(project: Project) -> None:
    project.write("b.parity.yaml", RECIPE.replace("./server.yaml", "hf-default"))
    done = project.check(recipes=("a.parity.yaml", "b.parity.yaml"))
    assert done.returncode == 2
    assert done.stderr == (
        "error: b.parity.yaml: the lock parity.lock.json has nothing of b.parity.yaml. `--update` adds it.\n"
    )
    first = project.read_lock()["recipes"]["a.parity.yaml"]
    assert project.check("--update", recipes=("b.parity.yaml",)).returncode == 0
    assert project.read_lock()["recipes"]["a.parity.yaml"] == first
    assert project.check(recipes=("a.parity.yaml", "b.parity.yaml")).returncode == 0
    (project.folder / "a.parity.yaml").unlink()
    done = project.check(recipes=("b.parity.yaml",))
    assert done.returncode == 2
    assert "the lock holds a.parity.yaml, and there is no such file. Was it renamed or removed?" in done.stderr
    assert project.check("--update", recipes=("b.parity.yaml",)).returncode == 0
    assert list(project.read_lock()["recipes"]) == ["b.parity.yaml"]


def test_nothing_is_written_where_a_recipe_could_not_be_checked(project: Project) -> None:
    before = project.lock.read_bytes()
    project.write("b.parity.yaml", RECIPE.replace("./server.yaml", "./nobody.yaml"))
    project.change("server.yaml", ("accumulate: fp32", "accumulate: bf16"))
    done = project.check("--update", recipes=("a.parity.yaml", "b.parity.yaml"))
    assert done.returncode == 2
    assert "--baseline parity.lock.json: not written, since a recipe could not be checked." in done.stderr
    assert project.lock.read_bytes() == before


def test_a_check_of_logs_has_no_baseline(project: Project) -> None:
    project.write("log.yaml", "kind: log\nfiles: [nothing.jsonl]\ngate: {metric: k3, below: 1e-3}\n")
    done = project.check(recipes=("log.yaml",))
    assert done.returncode == 2
    assert "log.yaml: a check of logs has no choices" in done.stderr


BROKEN = {
    "cut off": (lambda text: text[: len(text) // 2], "parity.lock.json:{last}: the lock is no JSON"),
    "merge marks": (lambda text: f"<<<<<<< HEAD\n{text}", "parity.lock.json:1: the lock is no JSON"),
    "a newer moeparity's": (lambda text: text.replace("lock/1", "lock/2"), "a newer moeparity's; this one reads"),
    "another file": (lambda _: '{"schema": "moeparity.report/3"}', "no lock: its schema is 'moeparity.report/3'"),
    "a list": (lambda _: "[]", "the lock is a list, expected an object"),
    "a key twice": (lambda text: text.replace('"kl":', '"k3":', 1), "the lock has 'k3' twice"),
    "an unknown key": (lambda text: text.replace('"budgets":', '"budget":', 1), "recipes > a.parity.yaml > budget"),
    "no digest": (lambda text: text.replace('"tokens": "', '"tokens": 1, "x": "', 1), "the lock is not as it was"),
    "NaN": (lambda text: text.replace('"at_most": 0.0', '"at_most": NaN', 1), "Input should be a finite number"),
    "no text": (lambda _: "\udcff", "no UTF-8 text"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_lock_that_cannot_be_judged_is_no_pass(project: Project, how: str) -> None:
    change, words = BROKEN[how]
    text = change(project.lock.read_text("utf-8"))
    project.lock.write_bytes(text.encode("utf-8", "surrogateescape"))
    done = project.check()
    assert done.returncode == 2
    # How long a line is, and so which one is cut, goes by the machine's figures.
    assert words.replace("{last}", str(text.count("\n") + 1)) in done.stderr
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert project.check("--update").returncode == 2, "what is broken is not written over"


@pytest.mark.parametrize("option", ["--junit", "--markdown"])
def test_a_lock_is_not_written_over_by_another_output(project: Project, option: str) -> None:
    before = project.lock.read_bytes()
    for words in ((), ("--update",)):
        done = project.check(option, project.lock.name, *words)
        assert done.returncode == 2
        assert project.lock.name in done.stderr
        assert project.lock.read_bytes() == before


def test_a_lock_that_is_not_there(project: Project) -> None:
    project.lock.unlink()
    done = project.check()
    assert done.returncode == 2
    assert "parity.lock.json: the lock cannot be read: No such file or directory. Is it in git?" in done.stderr
    for words in (("--update",), ("--update", "--baseline", "-")):
        recipe = str(project.folder / "a.parity.yaml")
        assert inside("check", recipe, *words, cwd=project.folder).returncode == 2


def test_digests_do_not_depend_on_what_else_is_run(project: Project) -> None:
    """A floor brings other micro-batches, and with them other waves."""
    project.change("a.parity.yaml", ("expect:", "floor: true\noracle: true\nexpect:"))
    assert findings(project.check()) == []
    assert torch.get_num_threads() == 1
