"""A server's steps in a recorder, told as vLLM's watcher tells them: whose rows are where, and which process writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from moeparity.evidence.capture.place import Places
from moeparity.evidence.capture.recorder import Recorder
from moeparity.evidence.capture.served import Served
from moeparity.evidence.capture.settings import CaptureSettings
from moeparity.evidence.trace.reader import RankTrace, open_trace
from moeparity.evidence.trace.records import Batch, Head
from moeparity.evidence.trace.writer import TraceWriter
from moeparity.hooks.vllm_steps import StepRows

ROWS: list[StepRows] = [
    {"requests": ["b", "a"], "starts": [0, 0], "tokens": [1, 48], "padding": 0},
    {"requests": ["a", "b"], "starts": [48, 1], "tokens": [22, 1], "padding": 5},
    {"requests": ["b"], "starts": [2], "tokens": [1], "padding": 0},
]
"""A prompt in chunks beside one that decodes; their rows are exchanged on the way."""


@dataclass
class Process:
    """A process under capture: what it would write, and how often it opened a file."""

    folder: Path
    settings: CaptureSettings = field(default_factory=CaptureSettings)
    opened: int = 0

    def __post_init__(self) -> None:
        """Nothing is written yet."""
        self.recorder = Recorder(self.settings, self._open, lambda: True, lambda: ())
        self.served = Served(self.recorder, Places(self.recorder))

    def _open(self) -> list[TraceWriter]:
        self.opened += 1
        return [TraceWriter(self.folder, Head(made_by="a test", levels=("module",)))]

    def call(self, path: str = "") -> None:
        """A module is called and returns."""
        self.recorder.returned(self.recorder.entered("module", "Module", path, "forward"))

    def serve(self, steps: list[StepRows]) -> None:
        """Steps as the engine makes them: it begins one, lays its rows out, and calls the model."""
        for rows in steps:
            self.served.step_begins()
            self.served.rows_are_known(rows)
            self.call("model")

    def trace(self) -> RankTrace:
        """What was written to its end."""
        self.recorder.close(whole=True)
        return open_trace(self.folder).ranks[0]


@pytest.fixture
def process(tmp_path: Path) -> Process:
    return Process(tmp_path / "trace")


def test_each_step_has_its_rows_in_their_order(process: Process) -> None:
    """Loading is step 0 and has none; calls and rows of a step have one number."""
    process.served.model_begins()
    process.call("loading")
    process.serve(ROWS)
    trace = process.trace()
    assert trace.contents.batches == {
        1: Batch(step=1, requests=("b", "a"), starts=(0, 0), tokens=(1, 48)),
        2: Batch(step=2, requests=("a", "b"), starts=(48, 1), tokens=(22, 1), padding=5),
        3: Batch(step=3, requests=("b",), starts=(2,), tokens=(1,)),
    }
    assert [(call.path, call.step) for call in trace.contents.calls] == [
        ("loading", 0), ("model", 1), ("model", 2), ("model", 3),
    ]  # fmt: skip
    assert trace.contents.whole


def test_a_step_that_is_not_recorded_has_no_rows(tmp_path: Path) -> None:
    process = Process(tmp_path / "trace", CaptureSettings(steps=(2, 3)))
    process.served.model_begins()
    process.serve(ROWS)
    assert list(process.trace().contents.batches) == [2]


def test_a_process_whose_model_is_elsewhere_writes_nothing(process: Process) -> None:
    """Neither what it called before the engine began nor what it calls after."""
    process.served.engine_may_begin()
    process.call("before")
    process.served.engine_begins()
    process.call("after")
    process.recorder.close(whole=True)
    assert process.opened == 0
    assert not process.folder.exists()


@pytest.mark.parametrize("begins", ["model_begins", "step_begins"])
def test_the_process_with_the_model_writes_what_it_called_from_then_on(process: Process, begins: str) -> None:
    process.served.engine_begins()
    process.call("before")
    process.recorder.flush()
    getattr(process.served, begins)()
    process.call("model")
    assert [call.path for call in process.trace().contents.calls] == ["model"]
    assert process.opened == 1


def test_a_process_that_may_begin_an_engine_keeps_what_it_called(process: Process) -> None:
    """It may have the model itself. Until it is known it opens no file, however long that takes."""
    process.served.engine_may_begin()
    process.recorder._due = 0.0
    process.call("before")
    assert process.opened == 0
    process.served.model_begins()
    process.call("model")
    assert [call.path for call in process.trace().contents.calls] == ["before", "model"]


def test_only_the_engine_ends_steps(process: Process) -> None:
    """An optimizer, or a program's own mark, is no step of it."""
    assert not process.served._places.marked
    process.serve(ROWS[:1])
    assert process.served._places.marked
