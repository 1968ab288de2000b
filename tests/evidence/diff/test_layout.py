"""Ranks are put together as declared: shards, partial sums, replicas; a replica that differs is a finding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from moeparity.errors import MoeparityError
from moeparity.evidence.diff.report import DiffReport
from moeparity.evidence.diff.run import diff
from tests.evidence.diff.scene import record

RANKS, WIDTH = 2, 16
LAYOUT = """
kind: layout
b:
  ranks:
    - {path: up, outputs: {axis: -1}, weights: {axis: 0}, inputs: replicated}
    - {path: act, outputs: {axis: -1}, inputs: {axis: -1}}
    - {path: down, outputs: partial, weights: {axis: -1}, inputs: {axis: -1}}
    - {path: "*", outputs: replicated, inputs: replicated, weights: replicated}
"""
IDS = torch.randint(0, 9, (2, 5), generator=torch.Generator().manual_seed(5))


class _Part(nn.Module):
    """A column-wise and a row-wise GEMM: of one rank, or whole."""

    def __init__(self, ranks: int, rank: int) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(0)
        self.embed, self.norm = nn.Embedding(9, WIDTH), nn.RMSNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 32 // ranks, bias=False), nn.Linear(32 // ranks, WIDTH, bias=False)
        self.act = nn.ReLU()
        self.embed.weight.data = torch.randint(-8, 8, (9, WIDTH), generator=random).double()
        up, down = (torch.randint(-8, 8, shape, generator=random).double() for shape in ((32, WIDTH), (WIDTH, 32)))
        self.up.weight.data, self.down.weight.data = up.chunk(ranks)[rank].clone(), down.chunk(ranks, 1)[rank].clone()
        self.norm.weight.data = torch.ones(WIDTH).double()
        self.sums: list[Tensor] = []

    def forward(self, input_ids: Tensor) -> Tensor:
        part = self.down(self.act(self.up(self.embed(input_ids))))
        self.sums.append(part)
        # The sum over ranks is exact: whole numbers in fp64.
        return self.norm(part if not _REDUCED else _REDUCED[0])


_REDUCED: list[Tensor] = []


def _compared(tmp_path: Path, layout: str = LAYOUT, fault: str = "") -> DiffReport:
    whole = _Part(1, 0)
    record(tmp_path / "a", whole, [IDS])
    _REDUCED.append(whole.sums[0].clone())
    try:
        for rank in range(RANKS):
            part = _Part(RANKS, rank)
            if fault and rank == 1:
                part.get_parameter(f"{fault}.weight").data[0] += 1
            record(tmp_path / f"rank{rank}", part, [IDS], rank=rank, ranks=RANKS)
    finally:
        _REDUCED.clear()
    (tmp_path / "rank1" / "rank-1").rename(tmp_path / "rank0" / "rank-1")
    (tmp_path / "layout.yaml").write_text(layout)
    return diff(tmp_path / "a", tmp_path / "rank0", tmp_path / "layout.yaml")


def test_shards_are_put_together_and_partial_sums_are_not_compared(tmp_path: Path) -> None:
    report = _compared(tmp_path)
    assert (report.starts, report.ranks) == ((), ())
    assert report.coverage.differing == 0
    assert report.coverage.equal >= 6
    # What a rank has of a sum is nobody's whole value: without the op that adds it up, it stays open.
    assert {entry.reason for entry in report.coverage.not_compared} == {
        "a rank's part, which the layout does not put together"
    }
    assert report.status == "inconclusive"


def test_a_shard_of_other_weights_is_named(tmp_path: Path) -> None:
    report = _compared(tmp_path, fault="up")
    first = report.starts[0]
    assert (report.status, first.kind, first.path) == ("fail", "weight", "up")
    assert (first.differing, first.rows) == (1, 32)


def test_a_replica_that_differs_is_a_finding(tmp_path: Path) -> None:
    report = _compared(tmp_path, fault="norm")
    assert report.status == "fail"
    assert all(text.startswith("B: norm") and "rank 1 has other bits than rank 0" in text for text in report.ranks[:2])


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("kind: layout\nb: {ranks: [{path: up, outputs: sharded}]}", "layout.yaml:2"),
        ("kind: layout\nb: {ranks: [{path: up, outputs: {axis: 7}}]}", "axis 7 of up"),
        ("kind: layout\nb: {tokens: {lengths: [9], padded_to: 4}}", "does not fit into padded_to: 4"),
        ("kind: recipe\n", "a layout is expected here"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(tmp_path: Path, layout: str, message: str) -> None:
    with pytest.raises(MoeparityError, match=message):
        _compared(tmp_path, layout)
