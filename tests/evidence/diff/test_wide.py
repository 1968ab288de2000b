"""The same program with other threads and other batches: the first op that varies is named (torch 2.13 on x86)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moeparity.evidence.capture import recorder
from moeparity.evidence.capture.context import capture
from moeparity.evidence.diff.report import DiffReport
from moeparity.evidence.diff.run import diff

WIDTH = 2048


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(64, WIDTH), nn.RMSNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 64, bias=False), nn.Linear(64, WIDTH, bias=False)
        random = torch.Generator().manual_seed(1)
        for parameter in self.parameters():
            parameter.data.normal_(0, 0.05, generator=random)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        return x + self.down(F.silu(self.up(self.norm(x))))


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def _recorded(folder: Path, batches: Sequence[Tensor], threads: int = 1) -> Path:
    torch.set_num_threads(threads)
    program = Wide().eval()
    with capture(folder, save="*"), torch.no_grad():
        for batch in batches:
            program(batch)
    return folder


def _varies(name: str, rows: Sequence[int], threads: Sequence[int]) -> bool:
    """Whether this machine's kernel gives the first row other bits."""
    random = torch.Generator().manual_seed(2)
    x, weight = torch.randn(8, WIDTH, generator=random), torch.randn(64, WIDTH, generator=random)
    outputs = []
    for count, number in zip(rows, threads, strict=True):
        torch.set_num_threads(number)
        outputs.append(F.linear(x[:count], weight)[: min(rows)])
    return not torch.equal(*outputs)


def test_one_and_two_threads(tmp_path: Path) -> None:
    if not _varies("up", (5, 5), (1, 2)):
        pytest.skip("on this machine a GEMM of 5 rows has the same bits with 1 and 2 threads")
    ids = torch.arange(5).unsqueeze(0)
    report = diff(_recorded(tmp_path / "a", [ids]), _recorded(tmp_path / "b", [ids], threads=2))
    first = report.starts[0]
    assert (first.kind, first.path, first.ops_a) == ("op", "up", ("up aten.mm.default",))
    assert first.orders.verdict == "inside"
    assert report.beyond is None


def test_batches_of_one_and_of_four(tmp_path: Path) -> None:
    if not _varies("up", (1, 4), (1, 1)):
        pytest.skip("on this machine a GEMM of 1 row has the bits of one of 4 rows")
    ids = torch.arange(4).unsqueeze(-1)
    report = diff(_recorded(tmp_path / "a", [ids]), _recorded(tmp_path / "b", [row.unsqueeze(0) for row in ids]))
    first = report.starts[0]
    assert (first.path, first.ops_a, first.rows) == ("up", ("up aten.mm.default",), 1)
    assert {start.passes for start in report.starts if start.path == "up"} <= {(0, i) for i in range(4)}
    assert report.status == "fail"


def _in_two_batches(folder: Path) -> DiffReport:
    ids = torch.arange(4).unsqueeze(-1)
    for name, batches in (("a", [ids]), ("b", [ids[:2], ids[2:]])):
        with capture(folder / name), torch.no_grad():
            for batch in batches:
                Wide().eval()(batch)
    return diff(folder / "a", folder / "b")


def test_ids_are_kept_without_being_selected(tmp_path: Path) -> None:
    report = _in_two_batches(tmp_path)
    assert report.coverage.compared > 0
    assert not any("ids of tokens were not kept" in sentence for sentence in report.words)


def test_other_shapes_without_ids_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "SMALL", 0)
    report = _in_two_batches(tmp_path)
    assert (report.status, report.coverage.compared, report.starts) == ("inconclusive", 0, ())
    assert any("whole ids of tokens were not kept" in sentence for sentence in report.words)
