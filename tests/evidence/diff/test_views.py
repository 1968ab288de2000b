"""Calls that read other parts of one weight, or of one value: never on equal inputs, whether whole values were kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moeparity.evidence.diff.report import DiffReport
from moeparity.evidence.diff.run import diff
from moeparity.evidence.diff.show import headline
from tests.evidence.recorded import recorded

_RANDOM = torch.Generator().manual_seed(0)
STACKED = torch.randn(4, 24, 24, generator=_RANDOM)
X = torch.randn(5, 24, generator=_RANDOM)
READS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "an expert's weight": lambda w, part: F.linear(X, w[part]),
    "an expert's weight as it lies": lambda w, part: X @ w[part],
    "columns of a weight": lambda w, part: X[:, :12] @ w[0][:12, 12 * (part - 1) : 12 * part],
    "columns of a value": lambda w, part: (X + 1)[:, 12 * (part - 1) : 12 * part] @ w[0][:12],
    "a weight or its transpose": lambda w, part: X @ (w[0] if part == 1 else w[0].t()),
}
TOLD = {"an expert's weight", "an expert's weight as it lies"}
"""Of these rows are known without whole values."""


class _Reads(nn.Module):
    def __init__(self, how: str, part: int) -> None:
        super().__init__()
        self.weight, self.how, self.part = nn.Parameter(STACKED.clone()), how, part

    def forward(self) -> Tensor:
        return READS[self.how](self.weight, self.part)


def compared(folder: Path, how: str, parts: tuple[int, int], save: str | tuple[str, ...]) -> DiffReport:
    for name, part in zip("ab", parts, strict=True):
        program = _Reads(how, part)
        with recorded(folder / name, level="op,module", save=save), torch.no_grad():
            program()
    return diff(folder / "a", folder / "b")


@pytest.mark.parametrize("how", READS)
@pytest.mark.parametrize("save", ["*", ()], ids=["whole", "digests"])
def test_another_part_is_never_an_op_on_equal_inputs(tmp_path: Path, how: str, save: str | tuple[str, ...]) -> None:
    report = compared(tmp_path, how, (1, 2), save)
    (first,) = report.starts
    assert report.exit_code == 1
    if save or how in TOLD:
        assert first.kind in {"weight", "wiring", "input"}
    else:
        assert (first.kind, first.unread) == ("op", 1)
        assert headline(first).startswith("outside modules: mm: 1 input can't be compared")
    assert "equal inputs" not in headline(first)


@pytest.mark.parametrize("how", READS)
def test_the_same_part_has_equal_bits(tmp_path: Path, how: str) -> None:
    assert compared(tmp_path, how, (2, 2), ()).exit_code == 0
