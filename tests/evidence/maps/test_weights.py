"""Weights of a program by their digests, where its ops were recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.evidence.traced import reported, tokens

OPS: dict[str, Any] = {"level": "op,module", "ids": tokens((2, 4)), "further": {"grafts": False}}


def test_a_programs_own_weights_are_the_checkpoints(qwen3_moe: Path, tmp_path: Path) -> None:
    traced = reported(tmp_path, qwen3_moe, **OPS).trace
    assert traced is not None
    # Of three layers two norms, two of heads, four projections and a gate; the embedding, the last norm, the head.
    assert (traced.weights, traced.other_weights) == (3 * 9 + 3, ())


def test_a_stale_weight_is_named(qwen3_moe: Path, tmp_path: Path) -> None:
    def stale(program: Any) -> None:
        program.model.layers[1].self_attn.k_proj.weight.data[0] *= 2

    report = reported(tmp_path, qwen3_moe, patch=stale, **OPS)
    assert report.trace is not None
    assert report.trace.other_weights == ("model.layers.1.self_attn.k_proj.weight",)
    assert [root.node for root in report.roots] == ["layers[1].attention.k_proj"]
    assert any("1 of 30 weights" in sentence for sentence in report.trace.reading)
