"""The first op beyond its own orders is found behind the first difference too; what is only carried accuses nobody."""

from __future__ import annotations

from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from moeparity.evidence.diff import walk
from moeparity.evidence.diff.report import DiffReport
from moeparity.evidence.diff.run import diff
from moeparity.evidence.diff.show import summary
from tests.evidence.diff.scene import Norm, model, record


def _reordered(dtype: torch.dtype = torch.float32) -> Any:
    """The first layer's attention adds up its heads the other way round: an order of the same sums."""
    program = model(dtype)
    projection = program.layers[0].attention.o_proj
    projection.forward = lambda x: F.linear(x.flip(-1), projection.weight.flip(-1))
    return program


def _compared(folder: Path, b: Any, **options: Any) -> DiffReport:
    a = record(folder / "a", model(torch.float32))
    return diff(a, record(folder / "b", b, **options))


def test_what_is_only_carried_is_not_beyond(tmp_path: Path) -> None:
    report = _compared(tmp_path, _reordered())
    if not report.starts:
        pytest.skip("on this machine a GEMM has the same bits with its products the other way round")
    assert report.starts[0].orders.verdict == "inside"
    assert report.coverage.differing > 100
    assert report.beyond is None
    assert not any("were held to the orders of their own calls" in sentence for sentence in report.words)


def _coarse_norm(self: Any, x: Tensor) -> Tensor:
    """Its statistic in bf16, by other ops than the plain one's."""
    mean = x.bfloat16().square().mean(-1, keepdim=True)
    return self.weight * (x * torch.rsqrt(mean.float() + 1e-6))


def _other_eps(self: Any, x: Tensor) -> Tensor:
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-2))


@pytest.mark.parametrize("changed", [_coarse_norm, _other_eps])
def test_an_op_behind_is_named_where_its_calls_or_arguments_are_others(tmp_path: Path, changed: Any) -> None:
    program = _reordered()
    norm: Norm = program.layers[2].norm
    norm.forward = MethodType(changed, norm)  # type: ignore[method-assign]
    report = _compared(tmp_path, program)
    if report.starts[0].path == "layers.2.norm":
        pytest.skip("on this machine a GEMM has the same bits with its products the other way round")
    assert report.starts[0].orders.verdict == "inside"
    assert report.beyond is not None
    assert (report.beyond.kind, report.beyond.path) == ("behind", "layers.2.norm")
    assert "the first that no drawn order gives is layers.2.norm: " in dict(summary(report))["orders"]


def test_an_op_behind_is_named_where_its_kernel_adds_otherwise(tmp_path: Path) -> None:
    """B's op has A's name and arguments, and gives what it would in bf16."""
    counted = iter(range(1 << 20))

    def change(op: str, args: Any, out: Any) -> Any:
        return out.bfloat16().float() if "_softmax" in op and next(counted) == 2 else out

    report = _compared(tmp_path, _reordered(), change=change)
    if report.starts[0].path == "layers.1.attention":
        pytest.skip("on this machine a GEMM has the same bits with its products the other way round")
    assert report.beyond is not None
    assert (report.beyond.path, report.beyond.ops_b) == (
        "layers.1.attention",
        ("layers.1.attention aten._softmax.default",),
    )


def test_where_the_walk_ended_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "MOST", 1)
    report = _compared(tmp_path, _reordered())
    if not report.starts:
        pytest.skip("on this machine a GEMM has the same bits with its products the other way round")
    assert any("were held to the orders of their own calls" in sentence for sentence in report.words)
