"""A norm that reads the sum before it is stored: the sum is made anew of what was recorded before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeparity.evidence.explain.explained_profile import profile_text
from moeparity.evidence.explain.report import Explained
from moeparity.evidence.explain.trace import ExplainRequest, explain_trace
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
NORMS = {"layers[0].moe.norm": "layers[0].attention.residual", "layers[1].attention.norm": "layers[0].moe.residual"}
"""By norm, the sum that it reads: of the same layer, and of the layer before."""


def explained(checkpoint: Path, folder: Path, settings: dict[str, str], nodes: str, start: str = FUSING) -> Explained:
    """What is said of nodes of a program with these settings, from a profile that fuses, or from another one."""
    folder.mkdir(exist_ok=True)
    trace = written(folder / "trace", opened(checkpoint), tokens(), settings=settings)
    (folder / "start.yaml").write_text(start)
    return explain_trace(
        ExplainRequest(trace=trace, checkpoint=checkpoint, profile=str(folder / "start.yaml"), nodes=(nodes,))
    )


@pytest.mark.parametrize("norm", NORMS)
def test_norms_are_as_the_profile_has_them(qwen3_moe: Path, tmp_path: Path, norm: str) -> None:
    (node,) = explained(qwen3_moe, tmp_path, FUSED, norm).nodes
    assert node.as_started
    assert node.nodes == (norm,), "the sum itself is another node's matter"
    assert (f"{NORMS[norm]}:output->{norm}", "fp32") in node.settings


def test_a_program_that_does_not_fuse_is_told(qwen3_moe: Path, tmp_path: Path) -> None:
    """By the choice of the sum, at the norm that reads it."""
    (node,) = explained(qwen3_moe, tmp_path, {}, "layers[1].attention.norm").nodes
    assert (node.explained, node.as_started) == (True, False)
    (match, *_) = node.matches
    assert match.choices == ("layers[0].moe.residual:output->layers[1].attention.norm=stored",)


def test_a_program_that_fuses_is_told_and_written(qwen3_moe: Path, tmp_path: Path) -> None:
    """From a profile that stores; what is written gives the norms as they were recorded."""
    plain = FUSING.partition("rules:")[0]
    result = explained(qwen3_moe, tmp_path, FUSED, "layers[*].*.norm", plain)
    of_norm = {node.node: node for node in result.nodes}
    for norm, residual in NORMS.items():
        (match, *_) = of_norm[norm].matches
        assert match.choices == (f"{residual}:output->{norm}=fp32",)
    profile = profile_text(result, "derived")
    assert "output->layers[*].attention.norm: fp32" in profile
    again = explained(qwen3_moe, tmp_path / "again", FUSED, "layers[*].*.norm", profile)
    assert [node.as_started for node in again.nodes] == [True] * len(of_norm)


def test_a_wrong_sum_is_not_said_of_the_norm_behind_it(qwen3_moe: Path, tmp_path: Path) -> None:
    """A sum that a fault moved is what the norm was given: only the sum is off."""
    settings = {"layers[0].moe.residual:output": "fp16"}
    for number, start in enumerate((FUSING.partition("rules:")[0], FUSING)):
        (residual,) = explained(qwen3_moe, tmp_path / f"{number}", settings, "layers[0].moe.residual", start).nodes
        (norm,) = explained(qwen3_moe, tmp_path / f"{number}n", settings, "layers[1].attention.norm", start).nodes
        assert not residual.as_started
        assert norm.explained
