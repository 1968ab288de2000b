"""The benchmark of shapes: training is balanced as Switch says, and the page compares intervals, not estimates."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.spiking.page import page
from benchmarks.spiking.runs import ALL_REDUCE, COMBINE, Figures, Size, sums
from benchmarks.spiking.shapes import SHAPES, _balance

FIGURES = Figures(
    model="qwen3, dense",
    seed=0,
    sum=ALL_REDUCE,
    loss=2.05,
    scored=512,
    mean=(5.3e-3, 5.1e-3, 5.4e-3),
    highest=1.063,
    rate=(1e-3, 5e-4, 2e-3),
    spikes=4,
    tokens=4,
    always=0,
    routes=0.0,
    unlikely=0.75,
    not_told=0.25,
    not_tried=0.0,
    flips=None,
    unlikely_p=(0.75, 0.4),
)
ROUTED = replace(
    FIGURES, model="qwen3_moe, 6 of 24", mean=(5.35e-3, 5.2e-3, 5.5e-3), rate=(8e-3, 4e-3, 9e-3), routes=0.75
)


def test_a_pair_is_told_apart_by_its_intervals_alone() -> None:
    lines = page([FIGURES, ROUTED, replace(ROUTED, sum=COMBINE)], Size(), 200).splitlines()
    (pair,) = [line for line in lines if "experts, or one MLP" in line]
    assert pair.endswith("| 5.35 : 5.30, not told apart | 8.00 : 1.00, higher |")
    assert "| qwen3_moe, 6 of 24 | 0 | 8.00 | 2.00 |" in lines
    assert "| qwen3, dense | 0 | 1.00 | 1.00 |" in lines
    assert max(map(len, (line for line in lines if not line.startswith("|")))) <= 120


def test_without_a_spike_there_are_no_shares() -> None:
    nothing = replace(FIGURES, spikes=0, rate=(0.0, 0.0, 0.0), unlikely_p=(float("nan"), 0.4))
    lines = page([nothing], Size(), 200).splitlines()
    assert "| qwen3, dense | 0 | all-reduce | 0 |  |  |  |  |  |  | 40% |" in lines


def test_experts_that_share_the_tokens_equally_cost_1() -> None:
    equal = torch.eye(4).repeat(3, 1)
    assert float(_balance(equal, 1)) == pytest.approx(1.0, rel=1e-6)
    assert float(_balance(torch.eye(4)[:1].repeat(12, 1), 1)) > 1.4


def test_every_token_meets_as_many_weights_in_each_shape() -> None:
    widths = set()
    for shape in SHAPES:
        width = shape.config.get("moe_intermediate_size", shape.config["intermediate_size"])
        widths.add(width * (shape.top_k or 1))
        assert (COMBINE in sums(shape)) == bool(shape.experts)
    assert widths == {288}
