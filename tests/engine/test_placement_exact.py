"""A placement is no other model: in fp64 every one gives the logits of one rank, up to the rounding of fp64 sums."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moeparity.engine.forward import forward
from moeparity.inputs.model import Model, open_model
from moeparity.ops.attribute import Value
from tests.checkpoint_factory import make_random
from tests.planted.places import random_tokens
from tests.small_models import SMALL

MODELS = ("qwen3_moe", "deepseek_v3", "qwen2_moe")
"""Key and value heads that ranks share; MLA with shared experts; a gated shared expert."""

PLACEMENTS: dict[str, dict[str, int | bool]] = {
    "tensor 2": {"tensor": 2},
    "tensor 4": {"tensor": 4},
    "expert 2": {"expert": 2},
    "expert 4": {"expert": 4},
    "both": {"tensor": 4, "expert": 2},
    "sequence": {"tensor": 4, "expert": 4, "sequence": True},
}
LATER: dict[str, Value] = {"**.combine_reduce:reduce": "later", "**.shared_reduce:reduce": "later"}
FORMS: dict[str, tuple[str, dict[str, int | bool], dict[str, Value]]] = {
    "column-wise": ("qwen3_moe", {"tensor": 4}, {"**.o_proj:parallel": "column"}),
    "blocks": ("qwen3_moe", {"tensor": 2}, {"**.o_proj:blocks": 8, "**.experts:blocks": 4, "lm_head:blocks": 8}),
    "first slot": ("qwen3_moe", {"expert": 4}, {"**.combine:partials": "first_slot"}),
    "from the last rank on": ("qwen3_moe", {"tensor": 4}, {"layers[*].*.reduce:order": "reverse"}),
    "bias after": (
        "qwen3_moe",
        {"tensor": 4},
        {"**.o_proj:bias": "after"},
    ),
    "one all-reduce": ("deepseek_v3", {"tensor": 4}, LATER),
    "one all-reduce, gated": ("qwen2_moe", {"tensor": 4, "expert": 4}, LATER),
    "one all-reduce, shared experts whole": (
        "qwen2_moe",
        {"tensor": 2},
        {**LATER, "**.shared_down_proj:tensor": 1},
    ),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """With biases where the model can have any."""
    by_name = {}
    for name in MODELS:
        folder: Path = tmp_path_factory.mktemp(name)
        make_random({**SMALL[name], "attention_bias": True}, folder)
        by_name[name] = open_model(folder, device="cpu", residency="resident")
    return by_name


def logits(model: Model, placement: dict[str, int | bool], settings: dict[str, Value]) -> torch.Tensor:
    ids = random_tokens(2, 7, seed=3)
    return forward(model, ids, profile="oracle", placement=placement, settings=settings)["logits"]


def assert_same_model(model: Model, placement: dict[str, int | bool], settings: dict[str, Value]) -> None:
    single, placed = logits(model, {}, {}), logits(model, placement, settings)
    assert single.dtype == placed.dtype == torch.float64
    assert not torch.equal(single, placed), "sums were cut"
    # The only tolerance in the tests of placement: sums of fp64 in other orders.
    assert float((single - placed).abs().max() / single.abs().max()) < 1e-12


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", MODELS)
def test_any_placement(models: dict[str, Model], name: str, placement: str) -> None:
    assert_same_model(models[name], PLACEMENTS[placement], {})


@pytest.mark.parametrize("form", FORMS)
def test_any_form_of_it(models: dict[str, Model], form: str) -> None:
    name, placement, settings = FORMS[form]
    assert_same_model(models[name], placement, settings)


def test_one_expert_a_token_has_one_partial_sum_by_slots(tmp_path: Path) -> None:
    fields = {**SMALL["qwen3_moe"], "num_experts_per_tok": 1}
    model = open_model(make_random(fields, tmp_path), device="cpu", residency="resident")
    by_slots: dict[str, Value] = {"**.combine:partials": "first_slot"}
    assert torch.equal(logits(model, {"expert": 4}, by_slots), logits(model, {}, {}))


def test_the_tolerance_would_show_a_wrong_model(models: dict[str, Model]) -> None:
    """An eps of 1e-9 in one renormalisation is no rounding of fp64."""
    model = models["qwen3_moe"]
    single = logits(model, {}, {})
    far = logits(model, {}, {"layers[2].moe.router:renormalize_eps": 1e-9})
    assert float((single - far).abs().max() / single.abs().max()) > 1e-12
