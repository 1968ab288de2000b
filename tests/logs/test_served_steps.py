"""What a server's steps say of each token of a log, on steps written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from moeparity.errors import LogError, Where
from moeparity.logs.record import Sequence
from moeparity.logs.served_steps import WAYS, ServedSteps
from moeparity.metrics.chunk import UNKNOWN
from tests.command import inside

STEPS = [
    {"spans": [[0, 0, 3]], "phase": "prefill", "requests": ["a"], "weights": "1"},
    {"spans": [[0, 3, 4], [1, 2, 3]], "phase": "chunk", "requests": ["a", "b"], "weights": "1", "padding": 2,
     "copies": [[1, 0, 2, 0, 0]]},
    {"spans": [[2, 2, 3]], "phase": "prefill", "requests": ["c"], "weights": "2", "copies": [[2, 0, 2, 0, 0]],
     "preempted": ["b"]},
    {"spans": [[2, 3, 4]], "phase": "decode", "requests": ["c"], "weights": "2"},
    {"spans": [[3, 0, 2]], "phase": "prefill", "requests": ["d"], "weights": "2"},
    {"spans": [[3, 2, 4]], "phase": "verify", "requests": ["d"], "weights": "2"},
    # Two drafts, of which one is accepted: the rows are computed in another sequence.
    {"spans": [[4, 4, 7]], "phase": "verify", "weights": "2", "copies": [[4, 0, 4, 3, 0], [3, 4, 6, 4, 0]]},
]  # fmt: skip
LENGTHS = (5, 4, 5, 7)
EXPECTED = {
    "phase": [
        ["", "prefill", "prefill", "prefill", "chunk"],
        ["", "", "", "chunk"],
        ["", "", "", "prefill", "decode"],
        ["", "prefill", "prefill", *["verify"] * 4],
    ],
    "rows": [["", 3, 3, 3, 4], ["", "", "", 4], ["", "", "", 1, 1], ["", 2, 2, 2, 2, 3, 3]],
    "drafted": [
        ["", *["sampled"] * 4],
        ["", "", "", "sampled"],
        ["", "", "", "sampled", "sampled"],
        ["", "sampled", "sampled", "an accepted draft", "sampled", "an accepted draft", "sampled"],
    ],
    "weights": [["", "1", "1", "1", "1"], ["", "", "", "1"], ["", "", "", "2", "2"], ["", *["2"] * 6]],
    "cache": [["computed"] * 5, ["prefix found"] * 4, ["prefix of other weights"] * 5, ["computed"] * 7],
    "preempted": [
        ["never stopped"] * 5,
        ["stopped or computed anew"] * 4,
        ["never stopped"] * 5,
        ["never stopped"] * 7,
    ],
}


def sequence(number: int, size: int) -> Sequence:
    return Sequence(
        id=str(number), where=Where(Path("log")), token_ids=torch.arange(size), mask=torch.ones(size).bool()
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(json.dumps(step) + "\n" for step in STEPS), "utf-8")
    return path


def test_a_token_has_the_step_of_the_row_before_it(file: Path) -> None:
    steps = ServedSteps(file)
    labelled = list(steps.labelled(iter([sequence(number, size) for number, size in enumerate(LENGTHS)])))
    assert EXPECTED.keys() == set(WAYS)
    for way, rows in EXPECTED.items():
        names = steps.names.get(way, {})
        labels = [each.labels[way].tolist() for each in labelled]
        assert [["" if label == UNKNOWN else names.get(label, label) for label in row] for row in labels] == rows, way


@pytest.mark.parametrize(("number", "size", "problem"), [(5, 5, "has no such sequence"), (0, 3, "more tokens")])
def test_a_log_of_another_run_is_refused(file: Path, number: int, size: int, problem: str) -> None:
    with pytest.raises(LogError, match=problem):
        list(ServedSteps(file).labelled(iter([sequence(number, size)])))


def test_what_only_steps_tell_needs_them(tmp_path: Path) -> None:
    done = inside("metrics", tmp_path / "log.jsonl", "--by", "cache")
    assert done.returncode == 2
    assert done.stderr == "error: --by cache: no log tells it. Give the server's steps too: --schedule FILE.\n"
