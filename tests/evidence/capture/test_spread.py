"""Runs of one training script whose losses spread: the op that makes it is named long before a loss shows it.

It adds the gradients of all nodes as they arrive, in another order in each run. Of one or two nodes that is one sum.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import moeparity
from moeparity.evidence.capture.verify.report import RankReport
from moeparity.evidence.diff.run import diff

STEPS, ROWS, WIDTH, NODES, RATE = 16, 16, 8, 4, 3.0
RUNS = (0, 1)
"""By how much nodes arrive later than their numbers."""
SHOWS = 0.05
"""A loss that is so much another one is seen in a curve."""
_arrival = [0]


@torch.library.custom_op("spread::sum", mutates_args=())
def _sum(gradients: list[Tensor]) -> Tensor:
    """As a collective that no library makes in a fixed order."""
    total = torch.zeros_like(gradients[0])
    for node in range(len(gradients)):
        total = total + gradients[(node + _arrival[0]) % len(gradients)]
    return total


def _losses(nodes: int, arrival: int, steps: int = STEPS) -> list[float]:
    """Of a training at so high a rate that what differs grows, on batches that are cut over the nodes."""
    _arrival[0] = arrival
    torch.manual_seed(0)
    data = torch.Generator().manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(WIDTH, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    losses = []
    for _ in range(steps):
        x, y = torch.randn(ROWS, WIDTH, generator=data), torch.randn(ROWS, 1, generator=data)
        parts = [(net(a) - b).square().sum() / ROWS for a, b in zip(x.chunk(nodes), y.chunk(nodes), strict=True)]
        each = [torch.autograd.grad(part, list(net.parameters())) for part in parts]
        for weight, gradients in zip(net.parameters(), zip(*each, strict=True), strict=True):
            weight.grad = _sum(list(gradients)).clamp(-1, 1)
        optimizer.step()
        losses.append(float(sum(part.detach() for part in parts)))
    return losses


def _verified(folder: Path, nodes: int, **settings: Any) -> tuple[RankReport, list[float], list[float]]:
    """The second run held to the first, and the losses of both."""
    with moeparity.capture(folder):
        first = _losses(nodes, RUNS[0])
    with moeparity.capture(verify=folder, **settings) as capture:
        second = _losses(nodes, RUNS[1])
    assert capture.verifier is not None
    return capture.verifier.report, first, second


@pytest.mark.parametrize("nodes", [1, 2])
def test_where_the_order_cannot_show_all_is_as_recorded(tmp_path: Path, nodes: int) -> None:
    report, first, second = _verified(tmp_path / "trace", nodes)
    assert first == second
    assert (report.exit_code, report.differing) == (0, 0)


def test_the_sum_that_spreads_the_losses_is_named_long_before_they_show_it(tmp_path: Path) -> None:
    report, first, second = _verified(tmp_path / "trace", NODES)
    assert first[0] == second[0]
    shown = next(step for step, (a, b) in enumerate(zip(first, second, strict=True)) if abs(a / b - 1) > SHOWS)
    assert shown > STEPS // 4
    assert report.first is not None
    assert report.first == report.root
    assert (report.first.step, report.first.name, report.first.inputs) == (0, "spread.sum.default", "equal")
    assert any(frame.endswith(" _losses") for frame in report.first.stack)


def test_a_tolerance_names_it_later_than_bits_do(tmp_path: Path) -> None:
    """As the script of a blog does that compares means within 1e-4: what it names is where it grew."""
    report, _, _ = _verified(tmp_path / "trace", NODES, atol=1e-4)
    assert report.first is not None
    assert report.first.step > 0
    assert report.first.name != "spread.sum.default"


def test_two_traces_of_such_runs_begin_to_differ_there(tmp_path: Path) -> None:
    for name, arrival in zip("ab", RUNS, strict=True):
        with moeparity.capture(tmp_path / name):
            _losses(NODES, arrival, steps=2)
    start = diff(tmp_path / "a", tmp_path / "b").starts[0]
    assert (start.kind, start.step, start.ops_a, start.ops_b) == ("op", 0, *[("spread.sum.default",)] * 2)
