"""A norm that reads the sum before it is stored, as servers fuse both: a trace has only what is stored."""

from __future__ import annotations

from pathlib import Path

import torch

from moeparity.bisection.pipeline import bisect
from moeparity.bisection.report import Report
from tests.evidence.traced import recipe, tokens
from tests.evidence.written import written
from tests.hf.compare import opened

FUSED = {"layers[*].**.residual:output->rms_norm": "fp32"}
RESIDUAL = "model.layers.1 output"
"""Where the map of transformers has the second layer's sum, as `written` calls it."""


def roots(report: Report) -> list[str]:
    return [root.node for root in report.roots]


def reported(checkpoint: Path, folder: Path, settings: dict[str, str], change: float = 0.0) -> Report:
    """The report of a reference that fuses on a program with these settings; to the second layer's sum of its second
    token `change` is added.
    """

    def changed(place: str, tensor: torch.Tensor) -> torch.Tensor:
        if place != RESIDUAL:
            return tensor
        moved = tensor.clone()
        moved[0, 1, 0] += change
        return moved

    ids = tokens()
    trace = written(folder / "trace", opened(checkpoint), ids, settings=settings, change=changed)
    reference = {"profile": "hf-eager", "dtype": "bf16", "set": FUSED}
    return bisect(recipe(folder, checkpoint, ids, trace, reference=reference, grafts=False), device="cpu")


def test_a_program_that_fuses_too_has_no_root(qwen3_moe: Path, tmp_path: Path) -> None:
    """Nor does any bit of its logits differ, so the norms did read what was not stored."""
    report = reported(qwen3_moe, tmp_path, FUSED)
    assert roots(report) == []
    assert report.metrics.unequal_tokens == 0


def test_a_program_that_does_not_is_told_by_its_norms(qwen3_moe: Path, tmp_path: Path) -> None:
    """Not by its sums, which are what they should be."""
    names = roots(reported(qwen3_moe, tmp_path, {}))
    assert names
    assert all(name == "norm" or name.endswith(".norm") for name in names), names


def test_a_sum_that_is_wrong_is_handed_on_as_it_was_recorded(qwen3_moe: Path, tmp_path: Path) -> None:
    """The norm behind it gives other bits than were recorded: the file was changed behind it."""
    assert roots(reported(qwen3_moe, tmp_path, FUSED, change=64.0)) == [
        "layers[1].moe.residual",
        "layers[2].attention.residual",
        "layers[2].attention.norm",
    ]
