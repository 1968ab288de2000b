"""A server that decodes against 8-bit keys and values, beside a trainer's prefill: where it begins, what ends it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity import bisect
from moeparity.bisection.options import Options
from moeparity.engine.forward import forward
from moeparity.numerics.bits import int_view, same_bits
from tests.opened import opened
from tests.planted.places import random_tokens, write_recipe

CACHE, ATTEND = "layers[*].attention.cache", "layers[*].attention.attend"
STORED: dict[str, str | float] = {f"{CACHE}:stored": "fp8_e4m3"}
COMPUTED: dict[str, str | float] = {**STORED, f"{ATTEND}:own_keys": "computed"}
OF_MLA: dict[str, str | float] = {**COMPUTED, "layers[*].attention.expand:own_keys": "computed"}
PROMPT, TOKENS = 7, 12
FIRST = "layers[0].attention.cache"
STEPS: list[dict[str, Any]] = [{"micro_batch": 3}, {"micro_batch": 1}, {"schedule": {"decode": {"from": PROMPT}}}]


def differing(model: Path, profile: str, settings: dict[str, str | float], schedule: dict[str, object]) -> list[int]:
    """The tokens of any sequence whose logits have other bits than those of a prefill without rounding."""
    ids = random_tokens(3, TOKENS)
    whole = forward(opened(model), ids, profile=profile, dtype="bf16")["logits"]
    ours = forward(opened(model), ids, profile=profile, dtype="bf16", settings=settings, schedule=schedule)["logits"]
    differs = (int_view(whole) != int_view(ours)).any(-1).any(0)
    return differs.nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("name", "settings"), [("qwen3_moe", COMPUTED), ("mixtral", COMPUTED), ("deepseek_v3", OF_MLA)]
)
def test_it_begins_where_stored_keys_are_read_first(
    request: pytest.FixtureRequest, name: str, settings: dict[str, str | float]
) -> None:
    """Own keys as computed: at the first token behind the prompt, or behind the first chunk of it."""
    model, decode = request.getfixturevalue(name), {"from": PROMPT}
    assert differing(model, "hf-eager", {}, {"decode": decode}) == [], "decode alone changes no bit here"
    assert differing(model, "hf-eager", settings, {"decode": decode}) == list(range(PROMPT, TOKENS))
    assert differing(model, "hf-eager", settings, {"prefill": {"chunk": 5}}) == list(range(5, TOKENS))


def test_it_begins_at_once_where_own_keys_are_read_as_stored(qwen3_moe: Path) -> None:
    assert differing(qwen3_moe, "hf-eager", STORED, {"decode": {"from": PROMPT}}) == list(range(TOKENS))


def test_what_the_cache_stores_is_the_toggle_that_restores(tmp_path: Path, qwen3_moe: Path) -> None:
    candidate = {"schedule": {"decode": {"from": PROMPT}}, "set": COMPUTED}
    path = write_recipe(tmp_path, qwen3_moe, {"input_ids": random_tokens(3, TOKENS)}, {"micro_batch": 3}, candidate)
    report = bisect(path, device="cpu", options=Options())
    assert report.roots[0].node == "layers[0].attention.cache"
    assert {root.op for root in report.roots} == {"kv_cache"}
    assert report.roots[0].choices[0].attribute == "stored"
    toggles = {toggle.name: toggle for toggle in report.toggles}
    stored = toggles[f"{CACHE}:stored"]
    assert stored.restores_all
    assert not stored.had_no_effect
    others = [toggle for toggle in report.toggles if toggle is not stored]
    assert others
    assert not any(toggle.restores_all for toggle in others)


@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3"])
def test_a_scale_that_is_told_leaves_every_schedule_the_same_cache(request: pytest.FixtureRequest, name: str) -> None:
    """A scale of the data is that of a step: then it goes by what is computed together."""
    model, ids = opened(request.getfixturevalue(name)), random_tokens(3, TOKENS)
    values = {
        scale: [
            forward(model, ids, dtype="bf16", settings={**STORED, f"{CACHE}:scale": scale}, save=[FIRST], **steps)[
                "layers.0.attention.cache.k"
            ]
            for steps in STEPS
        ]
        for scale in ("static", "head")
    }
    assert all(same_bits(values["static"][0], cache) for cache in values["static"][1:])
    assert not any(torch.equal(values["head"][0], cache) for cache in values["head"][1:])


def served(folder: Path, ids: torch.Tensor, decode: int | None, *, tile: int) -> torch.Tensor:
    """Logits with batch-invariant kernels and 8-bit keys; tiles of 192 keys in prefill and `tile` in decode."""
    settings: dict[str, str | float] = {
        f"{CACHE}:stored": "fp8_e4m3",
        f"{ATTEND}:own_keys": "stored",
        f"{ATTEND}:kv_block@prefill": 192,
    }
    schedule: dict[str, Any] = {"rule": "vllm-v1"}
    if decode is not None:
        settings, schedule = {**settings, f"{ATTEND}:kv_block@decode": tile}, {**schedule, "decode": {"from": decode}}
    return forward(opened(folder), ids, profile="vllm-batch-invariant", schedule=schedule, settings=settings)["logits"]


@pytest.mark.parametrize(("tile", "begins"), [(96, 96), (32, 41), (192, None)])
def test_other_tiles_in_decode_begin_to_differ_at_the_border_of_one(tile: int, begins: int | None) -> None:
    """vLLM#54035: where the 97th key is the first of a second tile; behind a prompt that ends later, at its end."""
    ids = torch.randint(0, 256, (2, 100), generator=torch.Generator().manual_seed(0))
    quickstart = Path(__file__).parents[3] / "checkpoints" / "quickstart"
    whole, decoded = served(quickstart, ids, None, tile=tile), served(quickstart, ids, 41, tile=tile)
    differs = (int_view(whole) != int_view(decoded)).any(-1).any(0).nonzero().flatten().tolist()
    assert differs[:1] == ([] if begins is None else [begins])
