"""One run held to what was kept, and to what was kept changed in every way: each has one line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moeparity.bisection.options import Options
from moeparity.bisection.outline import outline_recipe
from moeparity.bisection.pipeline import bisect
from moeparity.check.baseline.baseline import Baseline, present_run, updated
from moeparity.check.baseline.compare import PresentRun
from moeparity.check.baseline.lock import Entry, Lock, read, text
from moeparity.errors import MoeparityError
from moeparity.output.findings import findings_code
from tests.check.baseline.project import Project
from tests.test_reports import refused

RECIPE = Path("a.parity.yaml")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> PresentRun:
    project = Project.create(tmp_path_factory.mktemp("ran") / "project")
    recipe = project.folder / RECIPE
    report = bisect(recipe, device="cpu", options=Options(digests=True))
    return present_run(report, outline_recipe(recipe), project.folder / "model", sampled=False)


def changed(ran: PresentRun, *path: str, to: Any) -> Entry:
    """What is kept, with one thing put in the place of another; None takes it out."""
    fields = ran.entry.model_dump()
    *above, name = path
    holder = fields
    for key in above:
        holder = holder[key]
    if to is None:
        del holder[name]
    else:
        holder[name] = to
    return Entry.model_validate(fields)


def findings_of(lock_entry: Entry | None, ran: PresentRun, *, update: bool = False) -> list[tuple[str, str, str]]:
    recipes = {} if lock_entry is None else {RECIPE.name: lock_entry}
    findings = Baseline(path=Path("x.lock.json"), lock=Lock(recipes=recipes), update=update).findings(RECIPE, ran)
    return [(f.status, f.expectation, f.found) for f in findings if f.status != "ok"]


def code(lock_entry: Entry, ran: PresentRun) -> int:
    baseline = Baseline(path=Path("x.lock.json"), lock=Lock(recipes={RECIPE.name: lock_entry}))
    return findings_code(baseline.findings(RECIPE, ran))


def test_the_same_is_the_same(ran: PresentRun) -> None:
    assert findings_of(ran.entry, ran) == []
    assert code(ran.entry, ran) == 0
    assert updated(ran.entry, ran) == ran.entry


CHOICES = ("choices", "candidate")
COMBINE = "layers[1].moe.combine"
GATE = "layers[0].moe.gate"
LINES: dict[str, tuple[tuple[str, ...], Any, list[tuple[str, str, str]]]] = {
    "a weight": (
        ("weights", GATE),
        "0123",
        [
            ("fail", "kept checkpoint", f"another checkpoint: other weights in {GATE} (1 of 23 nodes)"),
            ("not judged", "kept bits", "another checkpoint or other tokens: values cannot be compared"),
        ],
    ),
    "config.json": (
        ("weights", "config.json"),
        "0123",
        [
            ("fail", "kept checkpoint", "another checkpoint: another config.json"),
            ("not judged", "kept bits", "another checkpoint or other tokens: values cannot be compared"),
        ],
    ),
    "tokens": (
        ("tokens",),
        "0123",
        [
            ("fail", "kept tokens", "other tokens, masks or records"),
            ("not judged", "kept bits", "another checkpoint or other tokens: values cannot be compared"),
        ],
    ),
    "a side": (
        ("sides", "candidate"),
        "./server.yaml, bf16, micro-batch 1",
        [
            (
                "fail",
                "kept candidate",
                "./server.yaml, bf16, micro-batch 1 -> ./server.yaml, bf16, micro-batch 2",
            )
        ],
    ),
    "a choice": (
        (*CHOICES, GATE, "output"),
        ["fp32", "verified"],
        [("fail", "kept choices of candidate", f"{GATE} output: fp32 -> bf16, set by ")],
    ),
    "a choice that takes no effect any more": (
        (*CHOICES, GATE, "tiles"),
        ["64", "read"],
        [("fail", "kept choices of candidate", f"{GATE} tiles: 64 -> -")],
    ),
    "evidence that was surer": (
        (*CHOICES, COMBINE, "accumulate"),
        ["fp32", "verified"],
        [("fail", "kept evidence of candidate", f"{COMBINE} accumulate: verified -> read")],
    ),
    "evidence that was less sure": ((*CHOICES, COMBINE, "accumulate"), ["fp32", "unknown"], []),
    "a node that is gone": (
        (*CHOICES, "nobody"),
        {"output": ["bf16", "read"]},
        [("fail", "kept nodes", "no longer there: nobody")],
    ),
    "a budget": (("budgets", "k3"), {"at_most": 1e-12}, [("fail", "kept k3 at most 1e-12", "")]),
    "a budget from below": (
        ("budgets", "k1"),
        {"at_least": 0.5},
        [("fail", "kept k1 at least 0.5", "this recipe has")],
    ),
    "no machine": (("machines",), {}, [("not judged", "kept bits", "nothing is kept of this machine: here ")]),
}


@pytest.mark.parametrize("line_name", LINES)
def test_every_change_has_its_line(ran: PresentRun, line_name: str) -> None:
    path, to, lines = LINES[line_name]
    lock_entry = changed(ran, *path, to=to)
    rows = findings_of(lock_entry, ran)
    assert [row[:2] for row in rows] == [row[:2] for row in lines]
    assert all(row[2].startswith(line[2]) for row, line in zip(rows, lines, strict=True)), rows
    assert code(lock_entry, ran) == int(any(row[0] == "fail" for row in lines))
    rewritten = [("updated", *row[1:]) for row in rows]
    assert findings_of(lock_entry, ran, update=True)[: len(rewritten)] == rewritten
    again = updated(lock_entry, ran)
    assert findings_of(again, ran) == [], "what is written anew is kept"


def test_surer_evidence_is_told(ran: PresentRun) -> None:
    lock_entry = changed(ran, *CHOICES, COMBINE, "accumulate", to=["fp32", "unknown"])
    findings = Baseline(path=Path("x"), lock=Lock(recipes={RECIPE.name: lock_entry})).findings(RECIPE, ran)
    assert f"surer: {COMBINE} accumulate: unknown -> read" in [finding.found for finding in findings]


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        (("layers[1].moe.norm", "layers[1].moe.gate"), "2 of 43 nodes have other bits, from layers[1].moe.norm"),
        (("embed", "lm_head", "norm"), "3 of 43 nodes have other bits, from embed (no choice of it changed), norm"),
    ],
)
def test_other_bits_are_told_by_the_nodes_where_they_start(ran: PresentRun, nodes: tuple[str, ...], words: str) -> None:
    lock_entry = ran.entry
    for node in nodes:
        lock_entry = changed(
            replace(ran, entry=lock_entry), "machines", ran.machine, "reference", node, to="0123 not finite"
        )
    ((status, expectation, words_said),) = findings_of(lock_entry, ran)
    assert (status, expectation) == ("fail", "kept bits of reference")
    assert words_said == f"{words} (no choice of it changed) on"


def test_a_digest_that_was_taken_out_by_hand_is_no_pass(ran: PresentRun) -> None:
    lock_entry = changed(ran, "machines", ran.machine, "candidate", "norm", to=None)
    assert findings_of(lock_entry, ran) == [("fail", "kept bits of candidate", "no digest to hold norm to")]
    lock_entry = changed(ran, "machines", ran.machine, "tokens", to="0123")
    ((status, _, words_said),) = findings_of(lock_entry, ran)
    assert (status, words_said) == ("fail", "the run samples other tokens, so that no value can be compared")


def renamed(value: Any, old: str, new: str) -> Any:
    if isinstance(value, dict):
        return {new if key == old else key: renamed(item, old, new) for key, item in value.items()}
    return value


def test_a_node_of_another_name_is_told_as_such(ran: PresentRun) -> None:
    lock_entry = Entry.model_validate(renamed(ran.entry.model_dump(), GATE, "layers[0].moe.door"))
    words = f"layers[0].moe.door is called {GATE}, with the same choices and weights"
    assert findings_of(lock_entry, ran) == [("fail", "kept nodes", words)]
    # With another choice it may be any node.
    fields = lock_entry.model_dump()
    fields["choices"]["reference"]["layers[0].moe.door"]["output"] = ["fp32", "verified"]
    words_said = [row[2] for row in findings_of(Entry.model_validate(fields), ran)]
    assert "no longer there: layers[0].moe.door" in words_said
    assert f"new: {GATE}" in words_said


def test_budgets_that_are_kept_stay_as_they_were_written_by_hand(ran: PresentRun) -> None:
    lock_entry = changed(
        ran, "budgets", to={"k3": {"at_most": 1e-12}, "kl": {"at_most": 0.5}, "nobody": {"at_most": 1.0}}
    )
    budgets = updated(lock_entry, ran).budgets
    assert budgets == {"k3": ran.entry.budgets["k3"], "kl": lock_entry.budgets["kl"]}
    assert budgets["k3"].at_most is not None
    assert 2 * ran.measured["k3"] <= budgets["k3"].at_most <= 2.2 * ran.measured["k3"]


def both_of(ran: PresentRun, elsewhere: PresentRun) -> Entry:
    return updated(ran.entry, elsewhere)


def test_other_machines_stay_while_numerics_are_alike(ran: PresentRun) -> None:
    elsewhere = replace(ran, machine="GenuineIntel AVX2, torch 2.12.0, 8 threads")
    bits = ran.entry.machines[ran.machine]
    elsewhere = replace(elsewhere, entry=ran.entry.model_copy(update={"machines": {elsewhere.machine: bits}}))
    ((status, _, words_said),) = findings_of(ran.entry, elsewhere)
    assert status == "not judged"
    assert words_said == (
        f"nothing is kept of this machine: kept of {ran.machine}, here {elsewhere.machine}. "
        "Budgets and choices are judged; `--update` here adds it"
    )
    upgraded = replace(ran, machine=ran.machine.replace("torch 2", "torch 99.2"))
    ((_, _, words_said),) = findings_of(both_of(ran, elsewhere), upgraded)
    version = ran.machine.split(", ")[1]
    assert words_said.startswith(f"nothing is kept of this machine: kept of {version}, here torch 99.2")
    gpu = replace(ran, machine=f"{ran.machine}, NVIDIA H100")
    ((_, _, words_said),) = findings_of(ran.entry, gpu)
    assert words_said.startswith(f"nothing is kept of this machine: here {gpu.machine}, kept {ran.machine}.")
    assert code(ran.entry, elsewhere) == 0
    two_machines = both_of(ran, elsewhere)
    assert set(two_machines.machines) == {ran.machine, elsewhere.machine}
    assert findings_of(two_machines, ran) == findings_of(two_machines, elsewhere) == []
    surer = changed(replace(ran, entry=two_machines), *CHOICES, COMBINE, "accumulate", to=["fp32", "verified"])
    assert set(updated(surer, ran).machines) == set(two_machines.machines), "evidence is no numerics"
    changed_entry = changed(replace(ran, entry=two_machines), *CHOICES, GATE, "output", to=["fp32", "verified"])
    assert set(updated(changed_entry, ran).machines) == {ran.machine}
    words = "those of 1 other machine are of other numerics now, and are dropped"
    assert ("updated", "kept bits", words) in findings_of(changed_entry, ran, update=True)


def test_a_function_that_is_not_deterministic_keeps_no_bits(ran: PresentRun) -> None:
    unsteady = replace(ran, unsteady="mine:combine", entry=ran.entry.model_copy(update={"machines": {}}))
    assert findings_of(ran.entry, unsteady) == [("not judged", "kept bits", "not deterministic: mine:combine")]
    assert findings_of(ran.entry, unsteady, update=True)[0][0] == "not judged"


def test_a_lock_is_written_and_read_as_it_is(ran: PresentRun, tmp_path: Path) -> None:
    lock = Lock(recipes={"b.yaml": ran.entry, "a.yaml": changed(ran, "budgets", to={"k3": {"at_most": 0.0}})})
    path = tmp_path / "x.lock.json"
    path.write_text(text(lock), "utf-8")
    assert read(path) == lock
    assert refused("baseline", json.loads(path.read_text("utf-8"))) == []
    assert refused("baseline", {"schema": "moeparity.lock/2", "recipes": {"a.yaml": {}}})
    assert text(read(path)) == text(lock)
    assert text(lock).index('"a.yaml"') < text(lock).index('"b.yaml"')
    assert text(Lock(recipes=dict(reversed(lock.recipes.items())))) == text(lock)


@pytest.mark.parametrize(
    "path", [("budgets",), ("sides",), ("choices", "reference", "norm", "eps"), ("budgets", "k3"), ("budgets", "kl")]
)
def test_what_is_no_entry_is_refused(ran: PresentRun, tmp_path: Path, path: tuple[str, ...]) -> None:
    fields = {"schema": "moeparity.lock/1", "recipes": {"a.yaml": ran.entry.model_dump()}}
    holder = fields["recipes"]["a.yaml"]  # type: ignore[index]
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = {"budgets": {}, "sides": None, "eps": [], "k3": {}, "kl": {"at_most": float("nan")}}[path[-1]]
    (tmp_path / "x.json").write_text(json.dumps(fields), "utf-8")
    with pytest.raises(MoeparityError, match=r"the lock is not as it was written: recipes > a\.yaml > "):
        read(tmp_path / "x.json")
