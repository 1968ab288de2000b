"""The contract, on seeds that stay; and that what breaks it is seen."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.errors.base import WEIGHTS
from tests.hostile import campaign, record
from tests.hostile.batch import Job, run_all
from tests.hostile.campaign import try_many, try_one
from tests.hostile.contract import CODES, Ended, breach, run
from tests.hostile.second import false_passes
from tests.hostile.subjects import BISECT, SUBJECTS
from tests.warm import load


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    load()


@pytest.mark.parametrize("kind", SUBJECTS)
def test_nothing_that_is_given_breaks_the_contract(kind: str) -> None:
    for trial in try_many(kind, range(1, 4)):
        assert trial.breach is None, f"{trial.case}, {' '.join(trial.command)}: {trial.breach}: {trial.says}"


@pytest.mark.parametrize("kind", SUBJECTS)
def test_what_is_changed_was_good_before(tmp_path: Path, kind: str) -> None:
    SUBJECTS[kind].make(tmp_path)
    for command in SUBJECTS[kind].commands:
        ended = run(command, tmp_path, SUBJECTS[kind].act)
        # `expect:` of the recipe with everything in it is not met, and the kernel's order is not torch's.
        assert ended.code in {0, 3} or command[0] == "check" or "certify" in command, ended.errors
        assert breach(ended) is None


@pytest.mark.parametrize(
    ("ended", "says"),
    [
        (Ended(None, "", ""), "hangs"),
        (Ended(70, "", "error: moeparity failed"), "exit code 70"),
        (Ended(-9, "", ""), "exit code -9"),
        (Ended(1, "Traceback (most recent call last):\n", ""), "a traceback"),
        (Ended(0, "a\x1b]0;b\x07", ""), "control character"),
        (Ended(2, "", "error: \u202e"), "control character"),
        (Ended(2, "", ""), "without a message"),
        (Ended(2, "", "x" * 3000), "a message of 3000 characters"),
    ],
)
def test_a_breach_is_seen(ended: Ended, says: str) -> None:
    assert says in str(breach(ended))
    assert all(breach(Ended(code, "text\n", "error: text\n")) is None for code in CODES)


def test_a_false_pass_is_seen(tmp_path: Path) -> None:
    """Of a report that says pass on weights that are not those of the run."""
    SUBJECTS["safetensors"].make(tmp_path)
    assert run(BISECT, tmp_path).code == 0
    assert false_passes([tmp_path]) == [None]
    good = tmp_path / "good"
    good.mkdir()
    shutil.copy(tmp_path / WEIGHTS, good)
    tensors = load_file(tmp_path / WEIGHTS)
    for change, says in (
        ({"lm_head.weight": torch.zeros(32, 16, dtype=torch.bfloat16)}, "logits that are all alike"),
        ({"model.layers.1.mlp.experts.3.up_proj.weight": torch.ones(8, 16, dtype=torch.bfloat16)}, "is constant"),
    ):
        save_file({**tensors, **change}, tmp_path / WEIGHTS)
        assert says in str(false_passes([tmp_path]))


def test_what_ends_a_process_ends_one_command_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.hostile.contract.LONGEST", 0.5)
    monkeypatch.setattr("tests.hostile.contract.STUCK", 1.0)

    def act() -> None:
        print(sys.argv[1], flush=True)
        if sys.argv[1] == "dies":
            os.kill(os.getpid(), signal.SIGTERM)
        while sys.argv[1] == "hangs":
            pass
        if sys.argv[1] == "waits":
            time.sleep(60)
        if sys.argv[1] == "raises":
            raise ValueError(sys.argv[1])
        sys.exit(3)

    words = ("one", "dies", "two", "hangs", "raises", "waits", "three")
    answers = list(run_all([Job(tmp_path, (word,), act=act) for word in words]))
    assert [ended.output for ended in answers] == [f"{word}\n" for word in words]
    assert [ended.code for ended in answers] == [3, -signal.SIGTERM, 3, None, 99, None, 3]
    assert [breach(ended) for ended in answers] == [
        *(None, "exit code -15", None),
        *("hangs: more than 0 s", "exit code 99", "hangs: more than 0 s", None),
    ]


def test_what_an_input_leaves_behind_in_a_process_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a command that ends well once, and otherwise the second time."""
    calls: list[str] = []

    def act() -> None:
        calls.append("called")
        sys.exit(1 if len(calls) == 1 else 3)

    monkeypatch.setitem(SUBJECTS, "routes", replace(SUBJECTS["routes"], act=act))
    monkeypatch.setattr(campaign, "AGAIN", 1)
    first, second = try_many("routes", [7, 8])
    assert (first.code, first.breach) == (1, None)
    assert (second.code, second.breach) == (1, "beside others it ends with 3: ")
    (alone,) = try_one("routes", 8)
    assert (alone.code, alone.breach) == (1, None)


def test_records_of_several_runs_add_up(tmp_path: Path) -> None:
    file = tmp_path / "record.jsonl"
    about: dict[str, Any] = {
        "seconds": 60.0,
        "commit": "abc",
        "versions": "torch 2",
        "machine": "a machine",
        "day": "2026-11-22",
    }
    for series, first, codes, broken in ((10, 10, {"2": 3, "70": 1}, ["seed 11"]), (50, 50, {"2": 4}, [])):
        block = record.Block(kind="a", series=series, first=first, number=2, codes=codes, broken=broken, **about)
        record.append(file, block)
    block = record.Block(kind="a", series=50, first=52, number=2, codes={"0": 2}, broken=[], parts={"late": 1}, **about)
    record.append(file, block)
    _, _, row, _, summary = record.table(record.read(file)).splitlines()
    assert row == "| a | 4; 1 late | 50 | 0: 2, 2: 4 | 0 | 1 |"
    assert summary == "4 inputs in 2.0 minutes of processor time: a machine, torch 2, of commit abc, 2026-11-22."
    assert record.table([]) == "nothing was tried"
