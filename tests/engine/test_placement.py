"""Fixed blocks give a whole model the same bits on any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moeparity.engine.forward import forward
from moeparity.inputs.model import Model, open_model
from moeparity.numerics.bits import same_bits
from tests.checkpoint_factory import make_random
from tests.planted.places import random_tokens
from tests.small_models import SMALL

RANKS = (1, 2, 4, 8)
EIGHT_HEADS: dict[str, dict[str, Any]] = {
    # Two key and value heads: four ranks hold the same one.
    "qwen3_moe": {"num_attention_heads": 8, "attention_bias": True},
    # MLA, a dense layer, expert groups, shared experts.
    "deepseek_v3": {"num_attention_heads": 8, "num_key_value_heads": 8, "attention_bias": True},
    "qwen2_moe": {"num_attention_heads": 8},
    # Sinks, experts with biases whose gate and up alternate.
    "gpt_oss": {"num_attention_heads": 8},
}


@pytest.fixture(params=EIGHT_HEADS)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Model:
    make_random({**SMALL[request.param], **EIGHT_HEADS[request.param], "num_hidden_layers": 2}, tmp_path)
    return open_model(tmp_path, device="cpu", residency="resident")


@pytest.mark.parametrize("sequence", [False, True])
def test_the_same_bits_on_any_number_of_ranks(model: Model, *, sequence: bool) -> None:
    """Logits and routes; nodes between them too, where the value is whole."""
    ids = random_tokens(2, 9)
    by_ranks = [
        forward(
            model,
            ids,
            profile="tp-invariant",
            placement={"tensor": ranks, "sequence": sequence and ranks > 1},
            save=["layers[*].*.residual"],
        )
        for ranks in RANKS
    ]
    assert len(by_ranks[0]) > 5
    for values in by_ranks[1:]:
        assert values.keys() == by_ranks[0].keys()
        assert [name for name, value in values.items() if not same_bits(value, by_ranks[0][name])] == []
    # What it is worth: cut into as many parts as there are ranks, every number has bits of its own.
    cut = [forward(model, ids, placement={"tensor": ranks})["logits"] for ranks in RANKS]
    assert not any(same_bits(first, second) for i, first in enumerate(cut) for second in cut[:i])
