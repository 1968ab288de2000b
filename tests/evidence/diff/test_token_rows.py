"""Values are compared by token, however sequences are padded, packed or cut into micro-batches."""

from __future__ import annotations

from pathlib import Path
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moeparity.evidence.diff.run import diff
from tests.evidence.diff.scene import HIDDEN, IDS, model, record
from tests.evidence.recorded import recorded

PADDED = {"input_ids": IDS.clone(), "attention_mask": torch.ones_like(IDS)}
PADDED["input_ids"][1, :3] = 0
PADDED["attention_mask"][1, :3] = 0


def test_sequences_one_by_one_are_the_same_tokens_as_all_at_once(tmp_path: Path) -> None:
    a = record(tmp_path / "a", model(torch.float64), [IDS])
    b = record(tmp_path / "b", model(torch.float64), [row.unsqueeze(0) for row in IDS])
    report = diff(a, b)
    # A GEMM may add otherwise with fewer rows; nothing else here does.
    assert all(any(call.endswith("mm.default") for call in start.ops_a) for start in report.starts)
    assert report.coverage.compared > 150
    stale_model = model(torch.float64)
    stale_model.layers[2].moe_norm.weight.data[0] = 2.0
    stale = diff(a, record(tmp_path / "c", stale_model, [row.unsqueeze(0) for row in IDS]))
    assert any((start.kind, start.path) == ("weight", "layers.2.moe_norm") for start in stale.starts)


class Parts(nn.Module):
    """Writes what it allocates in two halves, whose products say where the greatest score of each token is."""

    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.embed, self.factor = nn.Embedding(64, HIDDEN), factor
        self.embed.weight.data.normal_(generator=torch.Generator().manual_seed(0))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embed(input_ids)
        written = torch.empty_like(x)
        written[..., : HIDDEN // 2] = x[..., : HIDDEN // 2]
        written[..., HIDDEN // 2 :] = x[..., HIDDEN // 2 :] * self.factor
        scores = (written[:, :, None] * written[:, None]).sum(-1)
        best = scores.masked_fill(attention_mask[:, None] == 0, -1e9).max(-1, keepdim=True)
        return written * best.values


def _captured(folder: Path, program: nn.Module, batch: dict[str, Tensor]) -> Path:
    with recorded(folder, level="op,module"), torch.no_grad():
        program(**batch)
    return folder


def test_what_was_written_part_by_part_is_no_weight(tmp_path: Path) -> None:
    """In another order of sequences its rows are others, and are compared by token; where a part is other, that is."""
    turned = {name: x[[2, 0, 1]] for name, x in PADDED.items()}
    a = _captured(tmp_path / "a", Parts(), PADDED)
    assert diff(a, _captured(tmp_path / "b", Parts(), turned)).starts == ()
    (first, *_) = diff(a, _captured(tmp_path / "c", Parts(3.0), turned)).starts
    assert first.kind == "op"
    assert first.ops_a == ("aten.mul.Tensor",)
    assert first.scalars == ("1: 2.0 | 3.0",)


def test_places_in_rows_of_other_widths_are_not_compared(tmp_path: Path) -> None:
    """Behind more padding at the left the same key stands in another column."""
    wider = {name: F.pad(x, (4, 0)) for name, x in PADDED.items()}
    assert diff(_captured(tmp_path / "a", Parts(), PADDED), _captured(tmp_path / "b", Parts(), wider)).starts == ()


def test_a_longer_batch_is_compared_as_far_as_both_go(tmp_path: Path) -> None:
    a = record(tmp_path / "a", model(), [IDS], ops=False)
    report = diff(a, record(tmp_path / "b", model(), [IDS[:, :5]], ops=False))
    assert all(start.rows == 15 for start in report.starts)
    assert report.coverage.compared > 20


def test_other_tokens_are_compared_with_nothing(tmp_path: Path) -> None:
    a = record(tmp_path / "a", model(), [IDS], ops=False)
    report = diff(a, record(tmp_path / "b", model(), [IDS.flip(-1)], ops=False))
    assert (report.status, report.coverage.compared) == ("inconclusive", 0)
    assert "nothing was compared" in report.reason


def test_a_fault_in_padding_only_is_told_as_that(tmp_path: Path) -> None:
    broken_model = model()
    broken_model.layers[1].moe.forward = MethodType(_tenfold_in_padding, broken_model.layers[1].moe)
    report = diff(record(tmp_path / "a", model(), [PADDED]), record(tmp_path / "b", broken_model, [PADDED]))
    assert (report.status, report.starts) == ("pass", ())
    assert report.coverage.padding > 0
    assert report.padding_start.startswith("layers.1.moe")
    assert "but for rows of padding" in report.reason


def _tenfold_in_padding(self: Any, x: Tensor) -> Tensor:
    return type(self).forward(self, x) * (10 - 9 * PADDED["attention_mask"].unsqueeze(-1).to(x.dtype))


def test_padding_that_is_seen_starts_where_it_is_read(tmp_path: Path) -> None:
    """The mask of one layer is all ones: rows of padding had other bits before, tokens from there on."""
    leaky_model = model()
    attention = leaky_model.layers[1].attention
    plain = type(attention).forward
    attention.forward = lambda x, attention_mask: plain(attention, x, torch.ones_like(attention_mask))
    report = diff(record(tmp_path / "a", model(), [PADDED]), record(tmp_path / "b", leaky_model, [PADDED]))
    assert report.status == "fail"
    assert report.starts[0].path == "layers.1.attention"


class _Packed(torch.nn.Module):
    """Norm and MoE of a model on rows behind each other: no attention, which would look across sequences."""

    def __init__(self) -> None:
        super().__init__()
        program = model()
        self.embed, self.norm, self.moe = program.embed, program.norm, program.layers[0].moe

    def forward(self, input_ids: Tensor, **_: Tensor) -> Tensor:
        return self.norm(self.moe(self.embed(input_ids)))


def test_packed_against_padded_by_token(tmp_path: Path) -> None:
    real = PADDED["attention_mask"].bool()
    lengths = real.sum(-1)
    packed = {"input_ids": PADDED["input_ids"][real].unsqueeze(0)}
    packed["cu_seqlens"] = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    a = record(tmp_path / "a", _Packed(), [PADDED], ops=False)
    report = diff(a, record(tmp_path / "b", _Packed(), [packed], ops=False))
    assert {start.rows for start in report.starts} <= {int(lengths.sum())}
    assert report.coverage.compared >= 4
    packed_model = _Packed()
    packed_model.norm.weight.data[HIDDEN // 2] = 3.0
    stale = diff(a, record(tmp_path / "c", packed_model, [packed], ops=False))
    assert (stale.status, stale.starts[-1].path, stale.starts[-1].tokens) == ("fail", "norm", int(lengths.sum()))
