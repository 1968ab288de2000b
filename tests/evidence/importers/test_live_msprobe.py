"""What msprobe's own writer writes, run here, becomes a trace that says what the program computed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moeparity.evidence.diff.run import diff
from moeparity.evidence.importers.registry import import_trace
from moeparity.evidence.trace.reader import RankTrace, open_trace
from moeparity.numerics.bits import same_bits
from tests.engines.live import ask
from tests.evidence.importers.test_importers import IDS, Tiny

pytestmark = pytest.mark.live


def _value(rank: RankTrace, path: str, name: str, role: str, slot: str) -> torch.Tensor:
    (call,) = (call for call in rank.contents.calls if (call.path, call.name) == (path, name) and getattr(call, role))
    tensor = rank.tensor(rank.contents.values[getattr(call, role)[slot]])
    assert tensor is not None
    return tensor


def test_a_dump_of_msprobe(tmp_path: Path) -> None:
    gradients = ask("live_msprobe", ("msprobe",), {"dump": {"kind": "dump", "folder": str(tmp_path)}})["dump"]
    for step, name in enumerate(("fresh", "stale")):
        dumped = (tmp_path / "dump" / f"step{step}").rename(tmp_path / f"{name}.d")  # by its name it is of that step
        import_trace("msprobe", dumped, tmp_path / name)
    rank, program = open_trace(tmp_path / "fresh").ranks[0], Tiny()
    assert same_bits(_value(rank, "embed", "Functional.embedding", "outputs", "0"), program.embed(IDS).detach())
    for number in range(3):
        path = f"layers.{number}"
        assert same_bits(_value(rank, path, "Linear", "weights", "bias"), program.get_parameter(f"{path}.bias").data)
        gradient = _value(rank, path, "Linear.weight.backward", "outputs", "weight")
        assert same_bits(gradient, gradients[f"{path}.weight"])
    assert not rank.contents.notes
    report = diff(tmp_path / "fresh", tmp_path / "stale")
    first = report.starts[0]
    assert (report.status, first.kind, first.path) == ("fail", "weight", "layers.1")
