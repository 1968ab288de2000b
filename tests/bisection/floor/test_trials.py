"""The floor of a side that decodes: its engine's other schedules run, whatever phases only they have."""

from __future__ import annotations

from pathlib import Path

import torch

from moeparity.bisection.pipeline import bisect
from tests.planted.places import random_tokens, write_recipe


def test_other_schedules_may_have_phases_that_no_side_has(tmp_path: Path, qwen3_moe: Path) -> None:
    ids = random_tokens(3, 6)
    scored = torch.zeros_like(ids, dtype=torch.bool)
    scored[:, 4:] = True
    server = {"profile": "vllm", "schedule": {"rule": "vllm-v1", "decode": {"from": "prompt"}}}
    recipe = write_recipe(tmp_path, qwen3_moe, {"input_ids": ids, "loss_mask": scored}, server, server, floor=True)
    floor = bisect(recipe, device="cpu").floor
    assert floor is not None
    assert "chunks of 6 tokens" in [trial.name for trial in floor.trials]
