"""Faults that cancel, in a whole bisection: both are named as a pair, by their nodes, and neither is said to help."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeparity import bisect
from moeparity.bisection.options import Options
from moeparity.bisection.report import Report
from tests.opened import opened
from tests.planted.places import random_tokens, write_recipe

LINEAR = """
import torch.nn.functional as F


def v(x, *, node):
    (weight,), (params,) = node.weights.values(), node.params.values()
    return F.linear(x, weight).view(*x.shape[:2], params["heads"], -1) * {up}


def o(x, *, node):
    (weight,) = node.weights.values()
    return F.linear(x, weight) * {down}
"""
# What the functions compute is no question here.
pytestmark = pytest.mark.usefixtures("brief_search")
NODES = ("layers[1].attention.v_proj", "layers[1].attention.o_proj")
PAIR = [f"{node}:impl" for node in NODES]


def report_of(
    folder: Path, checkpoint: Path, factors: tuple[float, float], *, attribute: bool, settings: dict[str, object]
) -> Report:
    module = f"cancel_{folder.name.replace('-', '_').replace('.', '_')}"
    (folder / f"{module}.py").write_text(LINEAR.format(up=factors[0], down=factors[1]), "utf-8")
    impls = [{"nodes": node, "call": f"{module}:{call}"} for node, call in zip(NODES, "vo", strict=True)]
    sides: tuple[dict[str, object], ...] = ({"micro_batch": 4}, {"micro_batch": 4, "impl": impls, "set": settings})
    path = write_recipe(folder, checkpoint, {"input_ids": random_tokens(12, 8)}, *sides)
    return bisect(path, device="cpu", options=Options(allow_code=True, attribute=attribute), opener=opened)


@pytest.mark.parametrize("attribute", [False, True])
@pytest.mark.parametrize("factors", [(2.0, 0.5), (3.0, 1 / 3)], ids=["to the last bit", "up to rounding"])
def test_faults_that_cancel_are_a_pair(
    tmp_path: Path, qwen3_moe: Path, factors: tuple[float, float], attribute: bool
) -> None:
    report = report_of(tmp_path, qwen3_moe, factors, attribute=attribute, settings={})
    (pair,) = report.offsets
    assert [pair.first, pair.second] == PAIR
    assert (pair.first_nodes, pair.second_nodes) == NODES
    assert pair.together == report.metrics.kl < min(pair.first_alone, pair.second_alone) / 100
    assert (pair.together == 0) == (factors[0] == 2)
    sentences = " ".join(report.reading)
    assert f"{' and '.join(PAIR)} offset each other" in sentences
    assert not any(word in sentences for word in ("help", "interact", "interchangeable", "makes most"))
    if report.attribution is not None:
        assert [row.role for row in report.attribution.shares.rows] == ["offsets", "offsets"]


@pytest.mark.parametrize("attribute", [False, True])
def test_a_pair_is_named_beside_a_culprit(tmp_path: Path, qwen3_moe: Path, attribute: bool) -> None:
    eps: dict[str, object] = {"layers[0].moe.norm:eps": 1e-2}
    report = report_of(tmp_path, qwen3_moe, (3.0, 1 / 3), attribute=attribute, settings=eps)
    assert [[pair.first, pair.second] for pair in report.offsets] == [PAIR]
    if report.attribution is not None:
        roles = {row.name: row.role for row in report.attribution.shares.rows}
        assert roles == {"layers[0].moe.norm:eps": roles["layers[0].moe.norm:eps"], **dict.fromkeys(PAIR, "offsets")}


def test_a_fault_alone_is_in_no_pair(tmp_path: Path, qwen3_moe: Path) -> None:
    eps: dict[str, object] = {"layers[0].moe.norm:eps": 1e-2}
    assert report_of(tmp_path, qwen3_moe, (3.0, 1.0), attribute=False, settings=eps).offsets == ()
