"""Rows that an expert selects: their order says nothing of tokens, also where there are as many as tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from moeparity.evidence.diff.report import DiffReport
from moeparity.evidence.diff.run import diff
from tests.evidence.recorded import recorded

HIDDEN, VOCABULARY = 8, 64
LENGTHS = (5, 7, 3)


class _Experts(nn.Module):
    """One expert that every token goes to, in one of two slots; rows of the first slot come first, as in transformers.

    `sorts`: rows are put in order by `argsort`, and back by its inverse, as grouped GEMMs want them.
    """

    def __init__(self, factor: float, *, sorts: bool) -> None:
        super().__init__()
        self.factor, self.sorts = factor, sorts

    def forward(self, x: Tensor, slots: Tensor) -> Tensor:
        if self.sorts:
            order = slots.argsort(stable=True)
            return (x[order] * self.factor)[order.argsort()]
        _, tokens = torch.where(torch.nn.functional.one_hot(slots, 2).T == 1)
        return torch.zeros_like(x).index_add(0, tokens, x[tokens] * self.factor)


class _Model(nn.Module):
    def __init__(self, factor: float = 2.0, *, sorts: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.experts = nn.Embedding(VOCABULARY, HIDDEN), _Experts(factor, sorts=sorts)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:  # noqa: ARG002  (it says what is padding)
        x = self.embed(input_ids)
        routed: Tensor = self.experts(x.reshape(-1, HIDDEN), input_ids.reshape(-1) % 2)
        return x + routed.reshape(x.shape)


def _rows(width: int, *, at_left: bool) -> tuple[Tensor, Tensor]:
    ids, mask = torch.zeros(2, len(LENGTHS), width, dtype=torch.int64)
    random = torch.Generator().manual_seed(3)
    for row, length in enumerate(LENGTHS):
        columns = slice(width - length, width) if at_left else slice(length)
        ids[row, columns], mask[row, columns] = torch.randint(1, VOCABULARY, (length,), generator=random), 1
    return ids, mask


def _compared(folder: Path, factor: float, *, sorts: bool) -> DiffReport:
    for name, model, rows in (
        ("a", _Model(sorts=sorts), _rows(7, at_left=False)),
        ("b", _Model(factor, sorts=sorts), _rows(9, at_left=True)),
    ):
        with recorded(folder / name, level="op,module"), torch.no_grad():
            model(rows[0], attention_mask=rows[1])
    return diff(folder / "a", folder / "b")


@pytest.mark.parametrize("sorts", [False, True])
def test_as_many_rows_as_tokens_are_not_taken_for_them(sorts: bool, tmp_path: Path) -> None:
    report = _compared(tmp_path, 2.0, sorts=sorts)
    assert (report.status, report.starts) == ("pass", ()), report.reason


@pytest.mark.parametrize("sorts", [False, True])
def test_what_the_expert_makes_wrong_starts_there(sorts: bool, tmp_path: Path) -> None:
    report = _compared(tmp_path, 3.0, sorts=sorts)
    assert (report.status, {start.path for start in report.starts}) == ("fail", {"experts"}), report.reason


class _Loop(nn.Module):
    """Experts in one stacked weight, those with tokens one after the other; a token goes to expert `id % 4`."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(3)
        self.embed = nn.Embedding.from_pretrained(torch.randint(-4, 5, (16, 8), generator=draw).float())
        self.stacked = nn.Parameter(torch.randint(-4, 5, (4, 8, 8), generator=draw).float())

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids).flatten(0, 1)
        out, expert_of = torch.zeros_like(x), input_ids.flatten() % 4
        for expert in expert_of.unique().tolist():
            rows = (expert_of == expert).nonzero().squeeze(-1)
            out.index_add_(0, rows, x[rows] @ self.stacked[expert])
        return out.view(*input_ids.shape, -1)


def test_loops_that_come_to_other_experts_in_one_place_are_no_start(tmp_path: Path) -> None:
    """Four sequences in two batches, paired otherwise: the n-th call of a loop is often another expert's."""
    sequences = torch.tensor([[4, 8], [1, 5], [2, 6], [3, 7]])
    program = _Loop()
    for name, batches in (("a", ([0, 1], [2, 3])), ("b", ([0, 2], [1, 3]))):
        ids = [sequences[batch] for batch in batches]
        with recorded(tmp_path / name, level="op,module"), torch.no_grad():
            for batch in ids:
                program(batch)
    report = diff(tmp_path / "a", tmp_path / "b")
    assert (report.status, report.starts) == ("pass", ()), report.reason
