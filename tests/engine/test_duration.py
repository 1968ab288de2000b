"""What would run for days is refused before it begins; what a machine can do is not."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from moeparity import bisect
from moeparity.engine import duration
from moeparity.errors import MoeparityError
from moeparity.plan.config import Config
from moeparity.plan.expand import expand
from moeparity.plan.spec.reader import shipped
from tests.errors.base import BASE

RECIPE = f"""
kind: recipe
checkpoint: {BASE}
tokens: {{file: {BASE}/tokens.safetensors, sampled_from: candidate}}
reference: {{profile: hf-eager}}
candidate: {{profile: hf-default}}
gate: {{metric: k3, below: 1.0e-4}}
"""


def test_per_token_a_model_multiplies_its_active_weights() -> None:
    """Two layers of Qwen3-30B-A3B: each 18.9 M of attention, 0.26 M of router, eight experts of 4.7 M; and the
    embedding and the head, 311 M each.
    """
    graph = expand(Config(shipped("configs", "json")["qwen3_moe"]))
    active = duration._multiply_adds(graph)
    assert 0.73e9 < active < 0.74e9


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("envelope: 1000000000", "this pass would take at least"),
        ("tokens: {file: T, sample: {from: candidate, new_tokens: 100000000, temperature: 1.0}}", "memory|sampling"),
    ],
)
def test_what_would_run_for_days_is_refused(tmp_path: Path, change: str, words: str) -> None:
    key = change.partition(":")[0]
    lines = [line for line in RECIPE.splitlines() if not line.startswith(f"{key}:")]
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("\n".join([*lines, change.replace("file: T", f"file: {BASE}/tokens.safetensors")]), "utf-8")
    with pytest.raises(MoeparityError, match=words):
        bisect(recipe, device="cpu")


def test_the_limit_can_be_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    duration.require_time(23 * 3600, "it", "")
    with pytest.raises(MoeparityError, match="it would take at least 25 hours, more than 24"):
        duration.require_time(25 * 3600, "it", "")
    monkeypatch.setenv(duration.HOURS, "inf")
    assert duration.most_hours() == math.inf
    for text in ("0", "nan", "a day", "-3"):
        monkeypatch.setenv(duration.HOURS, text)
        with pytest.raises(MoeparityError, match="expected a number of hours above 0"):
            duration.most_hours()
