"""Progress of a pass: told after every node of every wave, and nowhere printed."""

from __future__ import annotations

import math
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity.cli.progress import described
from moeparity.engine import ticks
from moeparity.engine.forward import forward
from moeparity.inputs.model import open_model
from moeparity.inputs.weights import store
from moeparity.inputs.weights.checkpoint import Checkpoint
from moeparity.inputs.weights.synthetic import Synthetic
from moeparity.numerics.dtypes import MODEL
from moeparity.ops.experts import EXPERTS
from moeparity.ops.kernels.experts import experts
from moeparity.progress import Progress, telling
from tests.checkpoint_factory import make_small


def test_a_pass_is_followed_from_end_to_end(
    qwen3_moe: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticks, "LONG", math.inf)
    heard: list[Progress] = []
    forward(qwen3_moe, torch.zeros(4, 5, dtype=torch.int64), micro_batch=2, device="cpu", progress=heard.append)
    checked = [event for event in heard if event.step == "checking weights"]
    walked = [event for event in heard if event.step == "pass"]
    assert [event for event in heard if event.step != "waiting for weights"] == checked + walked
    for reports in (checked, walked):
        assert [event.done for event in reports] == sorted(event.done for event in reports)
        assert [event.work for event in reports] == sorted(event.work for event in reports)
        assert reports[-1].done == reports[-1].total
    assert checked[0].done == 0
    assert [event.done for event in walked] == list(range(1, walked[0].total + 1))
    # One variant in two waves: as many evaluations as steps.
    assert walked[-1].work == walked[-1].total
    assert list(dict.fromkeys(event.at for event in walked)) == [
        "before",
        "layers[0]",
        "layers[1]",
        "layers[2]",
        "after",
    ]
    assert checked[-1].work == pytest.approx((qwen3_moe / "model.safetensors").stat().st_size / 1e6, rel=0.05)
    assert capfd.readouterr() == ("", "")


def test_a_pass_says_how_far_the_weights_are_that_it_waits_for(
    qwen3_moe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that are made from a seed, one pass after the other; each counts from 0 to less than all there is."""
    monkeypatch.setattr(store, "_BETWEEN_REPORTS", 0.002)
    tensor = Synthetic.tensor

    def slowly(source: Synthetic, name: str) -> torch.Tensor:
        time.sleep(0.0005)
        return tensor(source, name)

    monkeypatch.setattr(Synthetic, "tensor", slowly)
    heard: list[Progress] = []
    model = open_model(qwen3_moe, device="cpu", synthetic=0, progress=heard.append)
    total_bytes = sum(entry.bytes for entry in model.weights.checkpoint.entries.values())
    for _ in range(2):
        heard.clear()
        forward(model, torch.zeros(4, 5, dtype=torch.int64))
        assert {event.step for event in heard} == {"waiting for weights"}
        assert heard[0].done < total_bytes / 3
        assert [event.done for event in heard] == sorted(event.done for event in heard)
        assert all(event.done <= event.total == total_bytes for event in heard)
        assert len({event.done for event in heard}) > 10
        assert all(event.work == event.done / 1e6 for event in heard)


def test_a_node_that_takes_long_is_told_of_while_it_is_computed(
    qwen3_moe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every node is made a long one; what decodes token by token has a turn for each step."""
    monkeypatch.setattr(ticks, "LONG", 0.0)
    heard: list[Progress] = []
    schedule = {"decode": {"from": 2}}
    forward(qwen3_moe, torch.zeros(2, 6, dtype=torch.int64), schedule=schedule, device="cpu", progress=heard.append)
    walked = [event for event in heard if event.step == "pass"]
    far = [event.done + event.part for event in walked]
    assert far == sorted(far)
    assert len({event.part for event in walked}) > 3
    assert [event.done for event in walked if event.done and not event.part][-1] == walked[-1].total
    first = next(event for event in walked if event.part)
    assert re.search("op evaluations/s, .* left", described(first, 1, 0.5))


def test_each_shard_is_told_of_before_it_is_opened(tmp_path: Path) -> None:
    heard: list[Progress] = []
    checkpoint = Checkpoint(make_small("qwen3_moe", tmp_path, "200KB"), heard.append)
    assert len(heard) > 2
    assert {event.step for event in heard} == {"opening the checkpoint"}
    assert [event.done for event in heard] == list(range(len(heard)))
    assert {event.total for event in heard} == {len(heard)}
    assert {event.at for event in heard} == {entry.file.name for entry in checkpoint.entries.values()}
    assert 0 < heard[-1].work < len(checkpoint.entries)


def test_nothing_is_told_of_where_nobody_listens(qwen3_moe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[dict[str, object]] = []
    monkeypatch.setattr(store, "Progress", lambda **fields: events.append(fields))
    model = open_model(qwen3_moe, device="cpu", synthetic=0)
    forward(model, torch.zeros(1, 2, dtype=torch.int64))
    assert events == []


@pytest.mark.parametrize(
    ("choices", "parts"),
    [
        # By expert: the four have 6, 2, 4 and 0 rows.
        ({}, [0, 6 / 12, 8 / 12, 1]),
        # Of the first one, of 6 rows, by blocks of two in either GEMM: never less than was told before.
        ({"rows": 2}, [0, 0, 2 / 12, 4 / 12, 4 / 12, 4 / 12, 4 / 12, 6 / 12]),
        ({"tensor": 2}, [0, 0, 3 / 12, 4 / 12, 6 / 12, 6 / 12, 6 / 12, 9 / 12]),
    ],
)
def test_an_op_that_takes_long_says_how_far_it_is(choices: dict[str, object], parts: list[float]) -> None:
    make = torch.Generator().manual_seed(0)
    ids = torch.tensor([[0, 1], [0, 2], [0, 2], [0, 1], [0, 2], [0, 2]]).view(1, 6, 2)
    w = {"gate_up": torch.randn(4, 8, 16, generator=make), "down": torch.randn(4, 16, 4, generator=make)}
    x = torch.randn(1, 6, 16, generator=make)
    settings = {a.name: torch.float32 if a.default in (MODEL, "fp32") else a.default for a in EXPERTS.attributes}
    at: dict[str, Any] = {**settings, "implementation": "loop", "score_site": "combine", **choices}
    silent = experts(x, ids, None, w=w, p={}, at=at)
    reports: list[float] = []
    with telling(reports.append):
        heard = experts(x, ids, None, w=w, p={}, at=at)
    assert torch.equal(silent.view(torch.int32), heard.view(torch.int32))
    assert reports == sorted(reports)
    assert reports[: len(parts)] == pytest.approx(parts)
