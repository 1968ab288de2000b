"""What a report was made with: digests that anybody can make again."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from moeparity.bisection.context import Context
from moeparity.bisection.prepare import prepare
from moeparity.bisection.provenance import measure
from moeparity.bisection.report import Report
from tests.opened import opened
from tests.planted.places import random_tokens, write_recipe


def test_files_are_told_by_the_digest_of_their_bytes(drawn_report: Report, qwen3_moe: Path) -> None:
    made_with = drawn_report.provenance
    assert made_with is not None
    weights = {Path(file.name).name: file for file in made_with.weights}
    assert weights.keys() == {"config.json", "model.safetensors"}
    content = (qwen3_moe / "model.safetensors").read_bytes()
    file = weights["model.safetensors"]
    assert (file.sha256, file.bytes, file.of) == (hashlib.sha256(content).hexdigest(), len(content), "file")
    assert dict(made_with.versions)["torch"] == torch.__version__
    assert made_with.capability == torch.backends.cpu.get_cpu_capability()


def test_of_large_weights_the_header_is_told_and_said_to_be(
    tmp_path: Path, qwen3_moe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "WHOLE", 1)
    recipe = write_recipe(tmp_path, qwen3_moe, {"input_ids": random_tokens(2, 4)}, {}, {})
    study = prepare(recipe, device="cpu", opener=opened)
    (config, weights) = measure.measure(Context(study, None, {})).weights  # type: ignore[arg-type]
    content = (qwen3_moe / "model.safetensors").read_bytes()
    header = content[: 8 + int.from_bytes(content[:8], "little")]
    assert (config.of, weights.of) == ("file", "header")
    assert weights.sha256 == hashlib.sha256(header).hexdigest()
