"""Every shipped graph, with and without padding, equals transformers bit for bit under both `hf-*` profiles."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from moeparity.engine.forward import forward
from moeparity.inputs.model import Model
from moeparity.numerics.bits import same_bits
from tests.checkpoint_factory import make_small
from tests.hf.compare import DTYPES, LIVE, PROFILES, assert_is, opened, padded, tokens
from tests.hf.reference import Routes, Truth, load, reference
from tests.small_models import SMALL, Shallow
from tests.verified import record_plan

MODELS = sorted(SMALL.keys() - {"qwen3_moe_odd", "qwen3_moe_even"})
"""All but those whose expert width torch's grouped GEMM refuses."""

# Longer than the windows of five tokens and than the 16 positions the dynamic rope was made for. transformers keeps the
# frequencies of the longest call, so that shapes come in ascending order.
LENGTHS, WIDTH = (19, 1, 6), 19
SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_routes(shallow: Shallow, name: str, profile: str, dtype: str) -> None:
    model = opened(shallow(name, 2))
    for shape in ((1, 1), (2, 5)):
        ids = tokens(model.vocab_size, shape)
        truth = reference(model.folder, profile, DTYPES[dtype], ids)
        assert_is(model, forward(model, ids, profile=profile, dtype=dtype), truth)
    ids = tokens(model.vocab_size, (len(LENGTHS), WIDTH))
    plain = forward(model, ids, profile=profile, dtype=dtype)
    assert_is(model, plain, reference(model.folder, profile, DTYPES[dtype], ids))
    both_ends = padded(LENGTHS, WIDTH, "left").roll(-4, 1) * (torch.arange(WIDTH) < WIDTH - 4)
    for mask in (*(padded(LENGTHS, WIDTH, side) for side in SIDES), both_ends):
        ours = forward(model, ids, profile=profile, dtype=dtype, attention_mask=mask)
        assert_is(model, ours, reference(model.folder, profile, DTYPES[dtype], ids, mask=mask))
        assert not same_bits(plain["logits"][2], ours["logits"][2])
    record_plan(model, LIVE, profile=profile, dtype=dtype)


def in_micro_batches(model: Model, profile: str, dtype: str, ids: torch.Tensor, mask: torch.Tensor) -> Truth:
    """transformers called once for every two sequences, with their own part of the mask."""
    parts = [
        reference(model.folder, profile, DTYPES[dtype], i, mask=m)
        for i, m in zip(ids.split(2), mask.split(2), strict=True)
    ]
    routes: Routes = [
        (torch.cat([ids for ids, _ in layer]), torch.cat([weights for _, weights in layer]))
        for layer in zip(*(routes for _, routes in parts), strict=True)
    ]
    return torch.cat([logits for logits, _ in parts]), routes


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", ["mixtral", "qwen2_sliding", "deepseek_v3", "gpt_oss"])
def test_each_micro_batch_has_its_own_mask(shallow: Shallow, name: str, profile: str, dtype: str) -> None:
    """Two full sequences, one of each kind of padding together, a full and a padded one, a padded one alone."""
    model = opened(shallow(name, 2))
    ids = tokens(model.vocab_size, (7, WIDTH))
    left, right = (padded((WIDTH, WIDTH, 7, WIDTH, WIDTH, 3, 12), WIDTH, side) for side in SIDES)
    mask = torch.cat((right[:3], left[2:3], right[4:5], left[5:]))
    truth = in_micro_batches(model, profile, dtype, ids, mask)
    assert_is(model, forward(model, ids, profile=profile, dtype=dtype, attention_mask=mask, micro_batch=2), truth)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_window_as_wide_as_the_sequences(shallow: Shallow, profile: str, dtype: str) -> None:
    """transformers hands sdpa a mask from the width of the window on, one token before it hides anything."""
    model = opened(shallow("mixtral_sliding"))
    for width in (4, 5, 6):
        ids = tokens(model.vocab_size, (3, width))
        truth = reference(model.folder, profile, DTYPES[dtype], ids)
        assert_is(model, forward(model, ids, profile=profile, dtype=dtype), truth)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_single_tokens_with_broad_heads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str, dtype: str
) -> None:
    """Above 256 columns a head sdpa is not told of grouped queries, and a single query is packed by group instead."""
    monkeypatch.setitem(SMALL, "broad", {**SMALL["qwen3"], "head_dim": 264, "num_hidden_layers": 1})
    model = opened(make_small("broad", tmp_path))
    for shape in ((3, 1), (2, 5)):
        ids = tokens(model.vocab_size, shape)
        truth = reference(model.folder, profile, DTYPES[dtype], ids)
        assert_is(model, forward(model, ids, profile=profile, dtype=dtype), truth)


def in_older_words(fields: dict[str, Any]) -> dict[str, Any]:
    """A config.json that transformers 5 wrote, as it stands on the hub: rope fields side by side, no list of layers."""
    older = {key: value for key, value in fields.items() if key not in {"layer_types", "dtype", "rope_parameters"}}
    rope = dict(fields["rope_parameters"])
    older |= {key: rope.pop(key) for key in ("rope_theta", "partial_rotary_factor") if key in rope}
    scaling = rope if rope["rope_type"] != "default" else None
    return older | {"torch_dtype": fields["dtype"], "rope_scaling": scaling}


@pytest.mark.parametrize(
    "name",
    [
        "llama",
        "llama_linear",
        "qwen2_sliding",
        "qwen3_sliding",
        "qwen2_moe",
        "mixtral",
        "olmoe",
        "glm4_moe_plain",
        "gpt_oss",
    ],
)
def test_config_json_of_the_older_generation(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> None:
    source: Path = request.getfixturevalue(name)
    fields = json.loads((source / "config.json").read_text("utf-8"))
    folder = Path(shutil.copytree(source, tmp_path / name))
    (folder / "config.json").write_text(json.dumps(in_older_words(fields)), "utf-8")
    model, ids = opened(folder), tokens(301, (2, 33))
    truth = reference(folder, "hf-eager", torch.float32, ids)
    assert_is(model, forward(model, ids, dtype="fp32"), truth)
    assert same_bits(reference(source, "hf-eager", torch.float32, ids)[0], truth[0]), "the same model in other words"


def test_theta_of_a_mixtral_that_names_none(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(request.getfixturevalue("mixtral"), tmp_path / "mixtral"))
    fields = json.loads((folder / "config.json").read_text("utf-8"))
    del fields["rope_parameters"]
    (folder / "config.json").write_text(json.dumps(fields), "utf-8")
    model, ids = opened(folder), tokens(512, (1, 33))
    assert_is(model, forward(model, ids, dtype="fp32"), reference(folder, "hf-eager", torch.float32, ids))


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_gain_and_limit_of_a_gpt_oss(gpt_oss: Path, tmp_path: Path, dtype: str) -> None:
    """transformers 5.23 reads them, where 5.17 has the numbers in its code: they are set in the model here."""
    folder = Path(shutil.copytree(gpt_oss, tmp_path / "gpt_oss"))
    fields = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**fields, "swiglu_alpha": 1.3, "swiglu_limit": 1.5}), "utf-8")
    for module in load(folder, "hf-eager", DTYPES[dtype]).modules():
        if type(module).__name__ == "GptOssExperts":
            vars(module).update(alpha=1.3, limit=1.5)
    model, ids = opened(folder), tokens(512, (2, 9))
    truth = reference(folder, "hf-eager", DTYPES[dtype], ids)
    assert_is(model, forward(model, ids, dtype=dtype), truth)
    assert not same_bits(reference(gpt_oss, "hf-eager", DTYPES[dtype], ids)[0], truth[0])
