"""Simulated tensor-parallel ranks equal transformers under torch's own `parallelize_module`, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from moeparity.engine.forward import forward
from moeparity.inputs.model import Model, open_model
from moeparity.numerics.bits import same_bits
from tests.checkpoint_factory import make_random
from tests.command import run_live
from tests.hf.compare import LIVE
from tests.hf.live_tensor_parallel import CHECKPOINTS, MOST, Case, Plan, cases
from tests.verified import record_plan

WORLDS = (2, 4, MOST)
PROFILES: Mapping[Plan, str] = {
    "default": "dtensor-rowwise",
    "stable": "dtensor-columnwise",
    "sequence": "dtensor-rowwise",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints, and what the live groups gave for them."""
    folder_made = tmp_path_factory.mktemp("tensor_parallel")
    for name, fields in CHECKPOINTS.items():
        make_random(fields, folder_made / name)
    # One gloo group for each number of ranks.
    run_live("tests.hf.live_tensor_parallel", str(folder_made), *map(str, WORLDS))
    return folder_made


@lru_cache(maxsize=1)
def opened(folder: Path) -> Model:
    return open_model(folder, device="cpu", residency="resident")


def variant(case: Case, world: int) -> dict[str, Any]:
    return {
        "profile": PROFILES[case.plan],
        "placement": {"tensor": world, "sequence": case.plan == "sequence"},
        "dtype": case.dtype,
        "settings": {"layers[*].attention.attend:implementation": case.attention},
    }


def simulated(folder: Path, case: Case, world: int) -> torch.Tensor:
    return forward(opened(folder / case.checkpoint), case.ids(), **variant(case, world))["logits"]


@pytest.mark.parametrize("world", WORLDS)
def test_simulated_ranks_equal_live_ones(folder: Path, world: int) -> None:
    truth = load_file(folder / f"{world}.safetensors")
    assert truth.keys() == {str(case) for case in cases(world)}
    wrong = [str(case) for case in cases(world) if not same_bits(simulated(folder, case, world), truth[str(case)])]
    assert wrong == []
    for case in cases(world):
        record_plan(opened(folder / case.checkpoint), f"{LIVE} under DTensor over gloo", **variant(case, world))


def test_the_cases_would_show_other_ranks_or_another_plan(folder: Path) -> None:
    """Rows cut over other ranks, columns, and from four ranks on a reduce-scatter, all give other bits."""
    of = {world: load_file(folder / f"{world}.safetensors") for world in WORLDS}
    for name in (str(case) for case in cases(2) if case.plan == "default" and case.attention == "sdpa"):
        worlds = [world for world in WORLDS if name in of[world]]
        assert worlds[:2] == [2, 4]
        assert all(not same_bits(of[first][name], of[second][name]) for first, second in pairwise(worlds)), name
        assert all(not same_bits(of[world][name], of[world][renamed(name, "stable")]) for world in worlds), name
        if renamed(name, "sequence") in of[2]:
            scattered = [
                world for world in worlds if not same_bits(of[world][name], of[world][renamed(name, "sequence")])
            ]
            assert scattered == worlds[1:], name
    assert any(case.plan == "sequence" for case in cases(MOST))


def renamed(name: str, plan: Plan) -> str:
    return name.replace("default", plan)
