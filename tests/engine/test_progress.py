"""Progress of a pass: told after every node of every wave, and nowhere printed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moeparity.engine.forward import forward
from moeparity.progress import Progress


def test_a_pass_is_followed_from_end_to_end(qwen3_moe: Path, capfd: pytest.CaptureFixture[str]) -> None:
    heard: list[Progress] = []
    forward(qwen3_moe, torch.zeros(4, 5, dtype=torch.int64), micro_batch=2, device="cpu", progress=heard.append)
    checked = [one for one in heard if one.step == "checking weights"]
    walked = [one for one in heard if one.step == "pass"]
    assert heard == checked + walked
    for reports in (checked, walked):
        total = reports[0].total
        assert [one.done for one in reports] == list(range(1, total + 1))
        assert [one.work for one in reports] == sorted(one.work for one in reports)
    # One variant in two waves: as many evaluations as steps.
    assert walked[-1].work == walked[-1].total
    assert list(dict.fromkeys(one.at for one in walked)) == ["before", "layers[0]", "layers[1]", "layers[2]", "after"]
    assert checked[-1].work == pytest.approx((qwen3_moe / "model.safetensors").stat().st_size / 1e6, rel=0.05)
    assert capfd.readouterr() == ("", "")
