"""NaN and infinities of either side, or of both: where they start; tests/planted has them token by token."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from moeparity import bisect
from moeparity.bisection.report import Report
from tests.bisection.reports import on_screen
from tests.planted.places import random_tokens, write_recipe

EPS = {"set": {"layers[0].moe.norm:eps": 1e-3}}
NARROW = {"set": {"layers[1].moe.combine:output": "fp16"}}
"""In fp16 what is beyond 65504 is infinite."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory, qwen3_moe: Path) -> Path:
    """One expert of layer 1 has a row whose products reach 1e6 and more."""
    return _with_row(qwen3_moe, tmp_path_factory.mktemp("large"), 1e8)


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory: pytest.TempPathFactory, qwen3_moe: Path) -> Path:
    """The same beyond what bf16 holds."""
    return _with_row(qwen3_moe, tmp_path_factory.mktemp("overflowing"), 3e38)


def _with_row(source: Path, folder: Path, value: float) -> Path:
    shutil.copytree(source, folder, dirs_exist_ok=True)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.experts.2.down_proj.weight"][3] = value
    save_file(tensors, folder / "model.safetensors")
    return folder


def report_of(folder: Path, checkpoint: Path, reference: dict[str, Any], candidate: dict[str, Any]) -> Report:
    micro_batch = {"micro_batch": 2}
    sides = (reference | micro_batch, candidate | micro_batch)
    return bisect(write_recipe(folder, checkpoint, {"input_ids": random_tokens(8, 8)}, *sides), device="cpu")


def test_what_both_sides_have_is_told_apart_from_what_one_makes(tmp_path: Path, overflowing: Path) -> None:
    report = report_of(tmp_path, overflowing, {}, EPS)
    assert report.nonfinite is not None
    first = report.nonfinite.first
    assert [(entry.side, entry.node, entry.expert) for entry in first] == [
        ("reference", "layers[1].moe.experts", 2),
        ("candidate", "layers[1].moe.experts", 2),
    ]
    assert report.nonfinite.made_by == ()
    assert any("no difference between them is needed for it" in sentence for sentence in report.nonfinite.reading)
    assert not any("has neither NaN" in sentence for sentence in report.nonfinite.reading)
    assert report.verdict.status == "fail"


@pytest.mark.parametrize("side", ["reference", "candidate"])
def test_what_one_side_makes_is_its_own(tmp_path: Path, large: Path, side: str) -> None:
    sides = ({}, NARROW) if side == "candidate" else (NARROW, {})
    report = report_of(tmp_path, large, *sides)
    assert report.nonfinite is not None
    (entry,) = report.nonfinite.first
    assert (entry.side, entry.node, entry.expert) == (side, "layers[1].moe.combine", None)
    assert entry.infinite > entry.nan == 0
    clean_side = "candidate" if side == "reference" else "reference"
    assert f"The {clean_side} has neither NaN nor infinities at any node." in report.nonfinite.reading
    toggle = report.toggles[0].name
    assert report.nonfinite.made_by == ((toggle,) if side == "candidate" else ())
    assert report.nonfinite.ended_by == ((toggle,) if side == "candidate" else ())
    assert report.verdict.status == "fail"


def test_it_is_told_before_the_roots_and_in_the_json(tmp_path: Path, large: Path) -> None:
    report = report_of(tmp_path, large, {}, NARROW)
    shown = on_screen(report, 300)
    assert shown.index("The candidate first has infinities at layers[1].moe.combine") < shown.index("Where it starts")
    assert "not finite moe.combine" in shown, "the largest error of a layer is where it starts"
    entry = json.loads(report.to_json())["nonfinite"]["first"][0]
    assert (entry["node"], entry["padding"], entry["tokens"] > 0) == ("layers[1].moe.combine", False, True)


def test_nothing_is_said_where_all_is_finite(tmp_path: Path, qwen3_moe: Path) -> None:
    assert report_of(tmp_path, qwen3_moe, {}, EPS).nonfinite is None
