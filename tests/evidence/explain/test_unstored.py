"""A norm that reads the sum before it is stored: the sum is made anew of what was recorded before it."""

from __future__ import annotations

from pathlib import Path

from moeparity.evidence.explain.report import Explained
from moeparity.evidence.explain.trace import Request, explain_trace
from tests.evidence.traced import tokens
from tests.evidence.written import written
from tests.hf.compare import opened

FUSING = """kind: profile
name: fusing
engine: {name: transformers, version: "5.23.0", says: a test}
extends: hf-eager
rules:
  - op: add
    set: {"output->rms_norm": fp32}
    evidence: {level: inferred, source: a test}
"""
FUSED = {"layers[*].**.residual:output->rms_norm": "fp32"}
NORMS = ("layers[0].moe.norm", "layers[1].attention.norm", "norm")
"""Behind a sum of the same layer, of the layer before, and of the last one."""


def explained(checkpoint: Path, folder: Path, settings: dict[str, str], nodes: str) -> Explained:
    """What is said of nodes of a program with these settings, held to a profile that fuses."""
    trace = written(folder / "trace", opened(checkpoint), tokens(), settings=settings)
    (folder / "fusing.yaml").write_text(FUSING)
    profile = str(folder / "fusing.yaml")
    return explain_trace(Request(trace=trace, checkpoint=checkpoint, profile=profile, nodes=nodes))


def test_norms_are_as_the_profile_has_them(qwen3_moe: Path, tmp_path: Path) -> None:
    for norm in NORMS:
        (node,) = explained(qwen3_moe, tmp_path / norm, FUSED, norm).nodes
        assert node.as_started, norm
        assert len(node.nodes) == 2, norm


def test_a_program_that_does_not_fuse_is_told(qwen3_moe: Path, tmp_path: Path) -> None:
    """By the choice of the sum, at the norm that reads it."""
    (node,) = explained(qwen3_moe, tmp_path, {}, "layers[1].attention.norm").nodes
    assert (node.explained, node.as_started) == (True, False)
    (match, *_) = node.matches
    assert match.choices == ("layers[0].moe.residual:output->layers[1].attention.norm=stored",)
