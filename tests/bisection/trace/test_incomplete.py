"""Traces that lack something: what can be said is said, and nothing passes."""

from __future__ import annotations

from pathlib import Path

import torch

from moeparity.bisection.pipeline import bisect
from moeparity.bisection.report import Report
from moeparity.inputs.model import open_model
from tests.evidence.traced import recipe, tokens
from tests.evidence.written import written


def _reported(checkpoint: Path, folder: Path, **settings: object) -> Report:
    ids = tokens((30, 5))
    trace = written(folder / "trace", open_model(checkpoint, device="cpu"), ids, **settings)  # type: ignore[arg-type]
    return bisect(recipe(folder, checkpoint, ids, trace), device="cpu")


def test_a_whole_trace_passes(qwen3_moe: Path, tmp_path: Path) -> None:
    assert _reported(qwen3_moe, tmp_path).verdict.status == "pass"


def test_a_trace_that_was_cut_passes_nothing(qwen3_moe: Path, tmp_path: Path) -> None:
    report = _reported(qwen3_moe, tmp_path, whole=False)
    assert report.verdict.status == "inconclusive"
    assert "the trace was cut" in report.verdict.reason
    assert report.exit_code == 3


def test_without_logits_nodes_are_looked_at_and_nothing_is_judged(qwen3_moe: Path, tmp_path: Path) -> None:
    def change(place: str, tensor: torch.Tensor) -> torch.Tensor | None:
        if place == "lm_head output":
            return None
        return tensor * 2 if place == "model.layers.1.self_attn.k_norm output" else tensor

    report = _reported(qwen3_moe, tmp_path, change=change)
    assert report.verdict.status == "inconclusive"
    assert "no logits were recorded" in report.verdict.reason
    # What was computed on is what was not doubled, so that the next node that is shown differs too.
    assert [root.node for root in report.roots] == ["layers[1].attention.k_norm", "layers[1].attention.attend"]
    assert report.trace is not None
    assert not report.trace.logits
    assert any("It shows no logits" in sentence for sentence in report.trace.reading)


def test_a_value_that_is_missing_widens_what_is_named(qwen3_moe: Path, tmp_path: Path) -> None:
    def change(place: str, tensor: torch.Tensor) -> torch.Tensor | None:
        if place.startswith("model.layers.1.self_attn.q_"):
            return None
        return tensor + 1 if place == "model.layers.1.self_attn.o_proj input" else tensor

    report = _reported(qwen3_moe, tmp_path, change=change)
    root = report.roots[0]
    assert root.node == "layers[1].attention.attend"
    names = ("q_proj", "q_norm", "rope", "cache")
    assert root.unshown == tuple(f"layers[1].attention.{name}" for name in names)
