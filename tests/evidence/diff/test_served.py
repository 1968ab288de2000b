"""Traces of a server: rows are matched by request and position; what the process keeps of its own is no value."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from moeparity.evidence.diff.run import diff
from moeparity.evidence.trace.digest import row_digests, value_digest
from moeparity.evidence.trace.records import Batch, Call, Head, Value
from moeparity.evidence.trace.writer import TraceWriter

TABLE = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
PROMPTS = {"x": [3, 4, 5, 6, 7], "y": [9, 2, 11]}
Step = Sequence[tuple[str, int, int]]
TOGETHER: Sequence[Step] = [[("x", 0, 4), ("y", 0, 2)], [("x", 4, 1), ("y", 2, 1)]]
APART: Sequence[Step] = [[("y", 0, 2)], [("y", 2, 1), ("x", 0, 4)], [("x", 4, 1)]]
TURNED: Sequence[Step] = [step[::-1] for step in TOGETHER]
"""Three schedules of the same requests: of each step the request, its first position and how many tokens."""


class _Server:
    """Writes the trace of an embedding, a packed GEMM with a handle, a square of what no recorded op made, a head for
    each request's last row, and with a seed a token that is drawn of that.
    """

    def __init__(self, folder: Path, handle: int, scale: float, seed: int | None) -> None:
        self.writer = TraceWriter(folder, Head(made_by="tests"))
        self.handle, self.scale, self.values, self.calls = torch.tensor(handle), scale, 0, 0
        self.generator = None if seed is None else torch.Generator().manual_seed(seed)

    def value(self, x: Tensor, label: str | None = None) -> int:
        number, self.values = self.values, self.values + 1
        dtype, rows = str(x.dtype).removeprefix("torch."), row_digests(x)
        strides, digest = tuple(x.stride()), value_digest(rows, x.shape, dtype)
        value = Value(id=number, dtype=dtype, shape=tuple(x.shape), strides=strides, digest=digest, label=label)
        self.writer.value(value, rows=rows, tensor=x.clone())
        return number

    def call(self, name: str, path: str, step: int, inputs: Sequence[int], output: int, *, level: str = "op") -> None:
        slots = {str(slot): number for slot, number in enumerate(inputs)}
        call = Call(id=self.calls, level=level, name=name, path=path, step=step, inputs=slots, outputs={"0": output})
        self.writer.call(call)
        self.calls += 1

    def serve(self, number: int, step: Step) -> None:
        requests, starts, counts = zip(*step, strict=True)
        self.writer.batch(Batch(step=number, requests=requests, starts=starts, tokens=counts))
        tokens = [token for name, first, count in step for token in PROMPTS[name][first : first + count]]
        ids, ends = torch.tensor(tokens), torch.tensor(counts).cumsum(0) - 1
        table = torch.tensor([number, *counts])
        ids_value, counters = self.value(ids), self.value(table + self.handle)
        self.call("aten.add.Tensor", "", number, [self.value(table)], counters)
        hidden = self.value(TABLE[ids])
        self.call("Embedding", "embed", number, [ids_value], hidden, level="module")
        rows = TABLE[ids] * self.scale
        product = self.value(rows)
        self.call("_C.onednn_mm.default", "embed", number, [hidden, self.value(self.handle), counters], product)
        written = rows.tanh()
        self.call("aten.pow.Tensor_Scalar", "embed", number, [self.value(written)], self.value(written.square()))
        logits = rows[ends] + 1
        head = self.value(logits)
        self.call("Head", "head", number, [product], head, level="module")
        if self.generator is not None:
            self.draw(number, logits, head)

    def draw(self, number: int, logits: Tensor, head: int) -> None:
        seeds = torch.randint(1 << 20, (len(logits),), generator=self.generator)
        tokens = (seeds % logits.shape[-1]).unsqueeze(-1)
        drawn = self.value(tokens)
        self.call("_C.fused_gumbel_argmax.default", "sampler", number, [head, self.value(seeds, "random")], drawn)
        self.call("aten.gather.default", "", number, [head, drawn], self.value(logits.gather(1, tokens)))


def served(
    folder: Path, schedule: Sequence[Step], *, handle: int = 4711, scale: float = 2.0, seed: int | None = None
) -> Path:
    server = _Server(folder, handle, scale, seed)
    for number, step in enumerate(schedule, 1):
        server.serve(number, step)
    server.writer.close(whole=True)
    return folder


def test_handles_and_counters_are_no_values(tmp_path: Path) -> None:
    report = diff(served(tmp_path / "a", TOGETHER), served(tmp_path / "b", TOGETHER, handle=815))
    assert (report.status, report.starts, report.coverage.uncovered) == ("pass", (), 0), report.reason


def test_other_steps_are_the_same_tokens(tmp_path: Path) -> None:
    """Rows of tokens, and of each request's last one, which a head is ids_value."""
    report = diff(served(tmp_path / "a", TOGETHER), served(tmp_path / "b", APART, handle=815))
    assert (report.status, report.starts) == ("pass", ()), report.words


@pytest.mark.parametrize("schedule", [TURNED, APART])
def test_what_no_recorded_op_made_and_drawn_tokens_accuse_nobody(tmp_path: Path, schedule: Sequence[Step]) -> None:
    """The first has as many rows in each step, those of other tokens."""
    report = diff(served(tmp_path / "a", TOGETHER, seed=0), served(tmp_path / "b", schedule, seed=1))
    assert report.starts == (), report.words
    assert report.status != "fail"


def test_a_fault_is_named_at_its_op_in_other_steps_too(tmp_path: Path) -> None:
    a = served(tmp_path / "a", TOGETHER)
    for name, schedule in (("b", TOGETHER), ("c", APART)):
        report = diff(a, served(tmp_path / name, schedule, handle=815, scale=2.5))
        assert report.status == "fail"
        assert report.starts[0].slot == "0 of _C.onednn_mm.default"


def test_a_prompt_is_compared_where_other_tokens_were_drawn_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = served(tmp_path / "a", TOGETHER)
    monkeypatch.setitem(PROMPTS, "x", [3, 4, 5, 6, 8])
    report = diff(a, served(tmp_path / "b", TOGETHER, scale=2.5))
    assert report.starts[0].slot == "0 of _C.onednn_mm.default"
    assert report.starts[0].tokens == 6
