"""Grafts: what each layer makes adds up to the candidate's KL, and stands where it is made."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from moeparity.bisection.outline import outline_recipe
from moeparity.bisection.pipeline import bisect
from moeparity.bisection.report import Report
from moeparity.bisection.trace.data import Traced
from moeparity.inputs.model import open_model
from tests.evidence.patches import PATCHES
from tests.evidence.traced import recipe, reported, tokens
from tests.evidence.written import written


def _traced(report: Report) -> Traced:
    assert report.trace is not None
    return report.trace


def of_two_layers(program: Any) -> None:
    program.model.layers[0].input_layernorm.variance_epsilon = 1e-2
    program.model.layers[2].mlp.experts.down_proj.data.mul_(1.5)


@pytest.fixture(scope="module")
def report(qwen3_moe: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    return reported(tmp_path_factory.mktemp("grafts"), qwen3_moe, patch=of_two_layers)


def test_what_segments_make_adds_up(report: Report) -> None:
    segments = _traced(report).segments
    assert [segment.name for segment in segments] == ["before", "layers[0]", "layers[1]", "layers[2]", "after"]
    assert sum(segment.made for segment in segments) == pytest.approx(report.metrics.kl, rel=1e-12)
    assert segments[-1].kl == report.metrics.kl
    assert [segment.roots for segment in segments] == [0, 1, 0, 1, 0]


def test_what_makes_nothing_is_exactly_nothing(report: Report) -> None:
    before, first, second, third, after = _traced(report).segments
    assert (before.made, second.made, after.made) == (0, 0, 0)
    assert min(first.made, third.made) > 0
    assert all(segment.low <= segment.made <= segment.high for segment in (first, third))
    assert "layers[2] makes" in report.summary.blame


def test_recorded_routes_are_forced(report: Report) -> None:
    routes = _traced(report).routes
    assert [rung.forced for rung in routes] == ["ids", "ids+weights", "ids+weights+order"]
    assert all(rung.kl >= 0 for rung in routes)


def test_a_fault_of_the_router_comes_by_its_routes_alone(qwen3_moe: Path, tmp_path: Path) -> None:
    draw = Random(5)  # noqa: S311
    report = reported(tmp_path, qwen3_moe, patch=lambda program: PATCHES["not_renormalised"](program, draw))
    rungs = {rung.forced: rung.kl for rung in _traced(report).routes}
    assert rungs["ids+weights+order"] == report.metrics.kl > 0


def test_segments_that_nothing_parts_are_told_together(qwen3_moe: Path, tmp_path: Path) -> None:
    """The stream behind the first layer was not recorded: neither there nor where the next one reads it."""

    def change(place: str, tensor: torch.Tensor) -> torch.Tensor | None:
        if place == "model.layers.0 output":
            return None
        return tensor * 2 if place == "lm_head output" else tensor

    ids = tokens((4, 5))
    trace = written(tmp_path / "trace", open_model(qwen3_moe, device="cpu"), ids, change=change)
    report = bisect(recipe(tmp_path, qwen3_moe, ids, trace), device="cpu")
    names = [segment.name for segment in _traced(report).segments]
    assert names == ["before", "layers[0] to layers[1]", "layers[2]", "after"]
    assert _traced(report).segments[-1].made == report.metrics.kl


def test_they_are_left_out_on_request(qwen3_moe: Path, tmp_path: Path) -> None:
    report = reported(tmp_path, qwen3_moe, patch=of_two_layers, further={"grafts": False})
    assert _traced(report).segments == ()
    assert any("switched off" in sentence for sentence in _traced(report).reading)


def test_a_plan_shows_the_reference_alone(qwen3_moe: Path, tmp_path: Path) -> None:
    outline = outline_recipe(recipe(tmp_path, qwen3_moe, tokens(), tmp_path / "trace"))
    assert outline.sides == ("reference",)
    assert outline.toggles == ()
    assert outline.title.endswith(f"candidate trace {tmp_path / 'trace'}")
