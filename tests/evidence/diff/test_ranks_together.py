"""Experts that every rank numbers from 0, and parts of sums: put together as declared, and never where nothing says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moeparity.errors import MoeparityError
from moeparity.evidence.diff.report import DiffReport
from moeparity.evidence.diff.run import diff
from tests.evidence.diff.scene import record

RANKS, WIDTH, EXPERTS = 2, 32, 4
IDS = torch.randint(0, 9, (2, 6), generator=torch.Generator().manual_seed(5))


class _Expert(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 16, bias=False), nn.Linear(16, WIDTH, bias=False)
        random = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            parameter.data.normal_(0, 0.3, generator=random)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.up(x)))


class _Attention(nn.Module):
    """Stands for one: a row-wise GEMM of a rank's part of the inputs, which `reduce` adds up."""

    def __init__(self, ranks: int, rank: int) -> None:
        super().__init__()
        self.ranks, self.rank = ranks, rank
        self.o_proj = nn.Linear(WIDTH // ranks, WIDTH, bias=False)
        weight = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(3)) * 0.3
        self.o_proj.weight.data = weight.chunk(ranks, 1)[rank].clone()

    def forward(self, x: Tensor) -> Tensor:
        return self.o_proj(x.chunk(self.ranks, -1)[self.rank].contiguous())


class _Program(nn.Module):
    """`world`: what all ranks' sum is, or None of one rank that has all. Experts are numbered as the rank has them."""

    def __init__(self, ranks: int = 1, rank: int = 0, mine: list[int] | None = None, world: Any = None) -> None:
        super().__init__()
        self.mine = list(range(EXPERTS)) if mine is None else mine
        self.embed = nn.Embedding(9, WIDTH)
        self.embed.weight.data.normal_(generator=torch.Generator().manual_seed(1))
        self.attention = _Attention(ranks, rank)
        self.experts = nn.ModuleList(_Expert(seed) for seed in self.mine)
        self.world = world
        self.parts: list[Tensor] = []

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        part = self.attention(x)
        self.parts.append(part.clone())
        x = x + (part if self.world is None else self.world(0))
        flat = x.reshape(-1, WIDTH)
        out = torch.zeros_like(flat)
        for place, expert in enumerate(self.mine):
            token = (torch.arange(len(flat)) % EXPERTS == expert).nonzero().flatten()
            out = out.index_add(0, token, self.experts[place](flat[token]))
        self.parts.append(out.clone())
        return x + (out if self.world is None else self.world(1)).reshape(x.shape)


def _layout(rules: str, experts: str) -> str:
    return f"""
kind: layout
b:
  {experts}
  ranks:
    - {rules}
    - {{path: "attention", call: "aten.*", outputs: {{axis: -1}}, inputs: replicated}}
    - {{path: "", call: "aten.index_add*", outputs: partial}}
    - {{path: "", call: "aten.clone*", outputs: own}}
    - {{path: "", call: "aten.eq*", outputs: own}}
    - {{path: "", call: "aten.nonzero*", outputs: own}}
    - {{path: "", call: "aten.index.Tensor", outputs: own}}
    - {{path: "*", outputs: replicated, inputs: replicated, weights: replicated}}
"""


SUM = '{path: "attention.o_proj", outputs: {sum: sequential}, weights: {axis: -1}, inputs: {axis: -1}}'


def _traces(tmp_path: Path, placed: list[list[int]], fault: tuple[int, int] | None = None) -> tuple[Path, Path]:
    """One rank with all, and two ranks with their experts; a fault in the down projection of rank r's expert i."""
    whole = _Program()
    a = record(tmp_path / "a", whole, [IDS])
    sums = [part.clone() for part in whole.parts]
    ranks = [_Program(RANKS, rank, placed[rank], lambda n: sums[n].clone()) for rank in range(RANKS)]
    if fault is not None:
        expert: Any = ranks[fault[0]].experts[fault[1]]
        expert.down.weight.data[3] *= 1.5
    for rank, program in enumerate(ranks):
        record(tmp_path / f"b{rank}", program, [IDS], rank=rank, ranks=RANKS)
    (tmp_path / "b1" / "rank-1").rename(tmp_path / "b0" / "rank-1")
    return a, tmp_path / "b0"


def _compared(tmp_path: Path, rules: str, experts: str, placed: Any = None, fault: Any = None) -> DiffReport:
    a, b = _traces(tmp_path, placed or [[0, 1], [2, 3]], fault)
    (tmp_path / "layout.yaml").write_text(_layout(rules, experts))
    return diff(a, b, tmp_path / "layout.yaml")


@pytest.mark.parametrize("order", ["sequential", "gloo.all_reduce"])
def test_partial_sums_are_added_and_lie_within_the_orders_of_the_whole_sum(tmp_path: Path, order: str) -> None:
    report = _compared(tmp_path, SUM.replace("sequential", order), 'experts: {path: "experts", per_rank: 2}')
    (start,) = report.starts
    assert (start.kind, start.path) == ("op", "attention.o_proj")
    assert start.orders.verdict == "inside", start.orders
    assert report.ranks == ()
    # All four experts were compared: their up, silu and down.
    assert report.coverage.equal > 4 * 3


@pytest.mark.parametrize("placed", [[[0, 1], [2, 3]], [[3, 0], [1, 2]]])
def test_an_expert_of_another_rank_is_named_by_the_whole_programs_number(tmp_path: Path, placed: Any) -> None:
    per_rank = "2" if placed == [[0, 1], [2, 3]] else str(placed)
    report = _compared(tmp_path, SUM, f'experts: {{path: "experts", per_rank: {per_rank}}}', placed, (1, 1))
    stale = [start for start in report.starts if start.kind == "weight"]
    assert [start.path for start in stale] == [f"experts.{placed[1][1]}.down"]
    assert (stale[0].differing, stale[0].rows) == (1, WIDTH)
    assert report.status == "fail"


def test_without_a_rule_local_names_are_no_experts_of_the_whole_program(tmp_path: Path) -> None:
    report = _compared(tmp_path, SUM, "")
    assert report.status == "fail"
    assert any("experts.0" in text and "rank 1 has other bits" in text for text in report.ranks)


def test_partial_sums_without_an_order_are_compared_with_nothing(tmp_path: Path) -> None:
    partial = SUM.replace("{sum: sequential}", "partial")
    report = _compared(tmp_path, partial, 'experts: {path: "experts", per_rank: 2}')
    assert report.status == "inconclusive"
    assert "a rank's part, which the layout does not put together" in {
        entry.reason for entry in report.coverage.not_compared
    }


@pytest.mark.parametrize(
    ("rules", "experts", "message"),
    [
        (SUM.replace("sequential", "backwards(3)"), "", r"layout.yaml:6.*backwards"),
        (SUM.replace("sequential", "tree((0+1)+2)"), "", "the sum of attention.o_proj"),
        (SUM, 'experts: {path: "experts", per_rank: 1}', "rank 0 calls experts.1.up, and by per_rank it has 1 expert"),
        (SUM, 'experts: {path: "experts", per_rank: [[0, 1, 2, 3]]}', "lists those of 1 rank, and the trace .* has 2"),
        (SUM, 'experts: {path: "experts", per_rank: [[0, 1], [1, 2]]}', "expert 1 stands there twice"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(tmp_path: Path, rules: str, experts: str, message: str) -> None:
    with pytest.raises(MoeparityError, match=message):
        _compared(tmp_path, rules, experts)
