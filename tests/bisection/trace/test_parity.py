"""A program of transformers, captured and held to `hf-eager`: parity, bit for bit, for every model type."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeparity.plan.spec import reader
from tests.evidence.traced import reported
from tests.small_models import SMALL

MODELS = (
    "llama",
    "qwen2",
    "qwen3",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe_mha",
    "olmoe_clip",
    "glm4_moe",
    "gpt_oss",
    "deepseek_v3",
)


def test_all_model_types_are_here() -> None:
    assert {SMALL[name]["model_type"] for name in MODELS} == set(reader.shipped("models"))


@pytest.mark.parametrize("name", MODELS)
def test_parity_bit_for_bit(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> None:
    report = reported(tmp_path, request.getfixturevalue(name))
    assert report.verdict.status == "pass"
    assert report.metrics.unequal_tokens == 0
    assert report.roots == ()
    traced = report.trace
    assert traced is not None
    assert traced.shown > traced.nodes / 2
    assert traced.tokens == traced.real_tokens == 36
    assert report.summary.starts.startswith("nowhere: every node that the trace shows")
    assert report.exit_code == 0
