"""A program of transformers, captured and held to `hf-eager`: parity, bit for bit, for every model type."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeparity.documents.checked import shipped
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
    "qwen3_next",
    "dots1",
    "solar_open",
    "glm4_moe_lite",
    "minimax_m2",
    "flex_olmo",
    "hy_v3",
    "ernie4_5_moe",
    "deepseek_v2",
    "granitemoe",
    "qwen3_5_moe",
    "qwen3_vl_moe",
    "granitemoeshared",
    "hunyuan_v1_moe",
    "exaone_moe",
    "afmoe",
    "kimi_linear",
    "axk1",
    "flint",
    "minimax",
    "mellum",
    "kolibri1",
    "cohere2_moe",
    "deepseek_v32",
    "glm_moe_dsa",
    "axk2",
    "mimo_v2_flash",
    "granitemoe_swa",
    "phimoe",
    "granitemoehybrid",
    "nemotron_h",
    "jamba",
    "mistral4",
    "llama4",
    "dbrx",
    "lfm2_moe",
    "laguna",
    "longcat_flash",
    "bailing_hybrid",
    "glm4v_moe",
    "kimi_k25",
)


def test_all_model_types_are_here() -> None:
    graphs = [reader.read_graph(path) for path in shipped("models").values()]
    assert {SMALL[name]["model_type"] for name in MODELS} == {name for graph in graphs for name in graph.model_type}


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
