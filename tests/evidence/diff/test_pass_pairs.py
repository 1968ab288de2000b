"""Which passes are compared: what a program computes before it has a step is none."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import moeparity
from moeparity.evidence.diff.run import diff


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.head = nn.Linear(8, 11)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(input_ids))


def test_a_server_that_computes_something_first_is_compared_by_tokens(tmp_path: Path) -> None:
    """Its first step is the other program's only one, and has no tokens."""
    torch.manual_seed(0)
    model, ids = Model(), torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    with torch.no_grad(), moeparity.capture(tmp_path / "served"):
        torch.ones(3).mul(2)
        moeparity.capture.step()
        model(ids[:1])
        moeparity.capture.step()
        model(ids[1:])
    with torch.no_grad(), moeparity.capture(tmp_path / "scored"):
        model(ids)
    report = diff(tmp_path / "served", tmp_path / "scored")
    assert report.status == "pass"
    assert report.coverage.equal >= 4
