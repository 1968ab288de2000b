"""Models in fp32 under torch.autocast on CPU: profiles give the same logits and routes, bit for bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from moeparity.engine.forward import forward
from moeparity.numerics.bits import same_bits
from tests.hf.compare import LIVE, assert_is, opened, tokens
from tests.hf.reference import reference
from tests.small_models import Shallow
from tests.verified import record_plan

PROFILE = "hf-autocast-bf16"
UNDER_AUTOCAST = {"hf-eager": PROFILE, "hf-default": "hf-default-autocast-bf16"}
"""What the profile without autocast becomes."""
MODELS = (
    "qwen3_moe",
    "qwen3_moe_mha",
    "qwen3",
    "llama",
    "qwen2",
    "mixtral",
    "qwen2_moe",
    "olmoe",
    "olmoe_clip",
    "glm4_moe_plain",
    "glm4_moe",
    "deepseek_v3",
    "deepseek_v3_yarn",
    "gpt_oss",
    "gpt_oss_mha",
    "dots1",
    "solar_open",
    "glm4_moe_lite",
    "minimax_m2",
    "hy_v3",
    "ernie4_5_moe",
    "deepseek_v2",
)
SCALED = ("deepseek_v3", "glm4_moe")
"""Whose routing weights are quotients, rounded to bf16 before routed_scaling_factor multiplies them."""
SHAPES = [(1, 1), (3, 7), (2, 65)]


def assert_equal(folder: Path, shape: tuple[int, int], plain: str = "hf-eager") -> None:
    model, profile = opened(folder), UNDER_AUTOCAST[plain]
    ids = tokens(model.vocab_size, shape)
    with torch.autocast("cpu", torch.bfloat16):
        truth = reference(folder, plain, torch.float32, ids)
    assert truth[0].dtype == torch.bfloat16
    assert_is(model, forward(model, ids, profile=profile, dtype="fp32"), truth)
    record_plan(model, f"{LIVE} under torch.autocast", profile=profile, dtype="fp32")
    without = forward(model, ids, profile=plain, dtype="fp32")["logits"]
    assert not same_bits(without.to(torch.bfloat16), truth[0])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("plain", UNDER_AUTOCAST)
@pytest.mark.parametrize("name", MODELS)
def test_equals_transformers_under_autocast(shallow: Shallow, name: str, plain: str, shape: tuple[int, int]) -> None:
    assert_equal(shallow(name), shape, plain)


def test_experts_run_in_fp32_where_their_gemms_are_grouped(shallow: Shallow) -> None:
    """In bf16, as eager experts do, the logits are others: autocast knows no grouped GEMM."""
    model = opened(shallow("qwen3_moe"))
    ids = tokens(model.vocab_size, (3, 7))
    in_bf16 = {f"layers[*].moe.experts:{site}": "bf16" for site in ("projections", "activation", "product", "output")}
    first, second = (
        forward(model, ids, profile=UNDER_AUTOCAST["hf-default"], dtype="fp32", settings=settings)["logits"]
        for settings in ({}, in_bf16)
    )
    assert not same_bits(first, second)


@pytest.mark.parametrize("scale", [1.0, 2.5, 2.827])
@pytest.mark.parametrize("name", SCALED)
def test_equals_transformers_at_any_scale(shallow: Shallow, tmp_path: Path, name: str, scale: float) -> None:
    folder = scaled(shallow(name), tmp_path / name, scale)
    for shape in SHAPES:
        assert_equal(folder, shape)


@pytest.mark.parametrize("name", SCALED)
def test_the_quotient_is_rounded_before_it_is_scaled(shallow: Shallow, tmp_path: Path, name: str) -> None:
    """Without that site the logits are others."""
    model = opened(scaled(shallow(name), tmp_path / name, 2.827))
    ids, settings_fp32 = tokens(model.vocab_size, (3, 7)), {"layers[*].moe.router:quotient": "fp32"}
    first, second = (
        forward(model, ids, profile=PROFILE, dtype="fp32", settings=settings)["logits"]
        for settings in ({}, settings_fp32)
    )
    assert not same_bits(first, second)


def scaled(source: Path, folder: Path, scale: float) -> Path:
    """A copy of a checkpoint with another routed_scaling_factor."""
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "routed_scaling_factor": scale}), "utf-8")
    return folder
