"""The `hf-*` profiles equal transformers bit for bit: logits, and every layer's routes in slot order."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moeparity.engine.forward import forward
from moeparity.inputs.model import Model, open_model
from moeparity.numerics.bits import same_bits
from tests.checkpoint_factory import make_fp32, make_small
from tests.hf.compare import DTYPES, LIVE, PROFILES, assert_is, opened, tokens
from tests.hf.reference import load, reference
from tests.small_models import Shallow
from tests.verified import record_plan

QUICKSTART = Path(__file__).parents[2] / "checkpoints" / "quickstart"
# As many rows as GEMMs take differently: one, few, more than a block, and many (the wide model has 4 x 128).
SHAPES = ((1, 1), (1, 5), (1, 17), (3, 7), (2, 300))
# The copy of the keys shows, or does not, by the GEMM of a head's queries and keys: one row, few, and many.
CACHED_SHAPES = ((1, 1), (3, 7), (2, 300))
MODELS = (
    "qwen3_moe",
    "qwen3_moe_mha",
    "qwen3",
    "deepseek_v3",
    "deepseek_v3_yarn",
    "gpt_oss",
    "qwen3_next",
    "qwen3_next_mha",
    "qwen3_5_moe",
    "deepseek_v2",
    "ernie4_5_moe",
    "minimax_m2",
)
CASES = [(model, profile) for model in MODELS for profile in PROFILES] + [("qwen3_moe_odd", "hf-eager")]


def size(shape: tuple[int, int]) -> str:
    return f"{shape[0]}x{shape[1]}"


def assert_equal(model: Model, profile: str, dtype: str, shape: tuple[int, int]) -> None:
    ids = tokens(model.vocab_size, shape)
    truth = reference(model.folder, profile, DTYPES[dtype], ids)
    assert_is(model, forward(model, ids, profile=profile, dtype=dtype), truth)
    record_plan(model, LIVE, profile=profile, dtype=dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=size)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "profile"), CASES)
def test_small_models(shallow: Shallow, name: str, profile: str, dtype: str, shape: tuple[int, int]) -> None:
    assert_equal(opened(shallow(name)), profile, dtype, shape)


@pytest.mark.parametrize("shape", CACHED_SHAPES, ids=size)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", ["qwen3_moe", "qwen3_moe_mha", "qwen3", "gpt_oss"])
def test_with_a_key_value_cache(shallow: Shallow, name: str, profile: str, dtype: str, shape: tuple[int, int]) -> None:
    model = opened(shallow(name))
    ids = tokens(model.vocab_size, shape)
    logits, _ = reference(model.folder, profile, DTYPES[dtype], ids, use_cache=True)
    cached = {"layers[*].attention.attend:kv_layout": "cached"}
    assert same_bits(forward(model, ids, profile=profile, dtype=dtype, settings=cached)["logits"], logits)
    record_plan(model, LIVE, profile=profile, dtype=dtype, settings=cached)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", ["deepseek_v3", "deepseek_v3_yarn"])
def test_caching_the_latent_changes_nothing(shallow: Shallow, name: str, profile: str, dtype: str) -> None:
    model = opened(shallow(name))
    ids = torch.arange(21).view(3, 7)
    logits, _ = reference(model.folder, profile, DTYPES[dtype], ids, use_cache=True)
    assert same_bits(forward(model, ids, profile=profile, dtype=dtype)["logits"], logits)


@pytest.mark.parametrize("shape", [(1, 1), (2, 300)], ids=size)
@pytest.mark.parametrize("profile", PROFILES)
def test_shipped_checkpoint(profile: str, shape: tuple[int, int]) -> None:
    assert_equal(opened(QUICKSTART), profile, "bf16", shape)


@pytest.mark.parametrize("name", ["qwen3_moe", "qwen3_moe_mha", "deepseek_v3", "gpt_oss"])
def test_sharded_checkpoint_gives_the_same_bits(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> None:
    sharded = make_small(name, tmp_path, max_shard_size="100KB")
    assert len(list(sharded.glob("model-*.safetensors"))) > 2
    ids = torch.arange(21).view(3, 7)
    whole, parts = (forward(folder, ids, device="cpu") for folder in (request.getfixturevalue(name), sharded))
    assert whole.keys() == parts.keys()
    assert all(same_bits(whole[key], parts[key]) for key in whole)


@pytest.mark.parametrize("name", ["qwen3_moe", "qwen3", "deepseek_v3", "gpt_oss"])
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("lead", [4, 20])
def test_fp32_file_with_unaligned_tensors(shallow: Shallow, tmp_path: Path, name: str, profile: str, lead: int) -> None:
    folder = make_fp32(shallow(name), tmp_path, lead)
    model = open_model(folder, device="cpu", residency="stream")
    tensors = [model.weights.checkpoint.tensor(key) for key in model.weights.checkpoint.entries]
    assert all(tensor.data_ptr() % 64 for tensor in tensors)
    loaded = load(folder, profile, torch.float32).get_parameter("model.layers.0.self_attn.o_proj.weight")
    assert loaded.data_ptr() % 64, "transformers too takes the file's tensors where they lie"
    for shape in ((1, 1), (1, 5), (3, 7), (4, 33)):
        assert_equal(model, profile, "fp32", shape)
