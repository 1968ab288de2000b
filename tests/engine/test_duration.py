"""What would run for days is refused before it begins; what a machine can do is not."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from moeparity import bisect
from moeparity.documents.checked import shipped
from moeparity.engine import duration
from moeparity.engine.footprint import estimate
from moeparity.engine.liveness import Values
from moeparity.engine.walker import Walker
from moeparity.errors import MoeparityError, Where
from moeparity.inputs.model import Model, open_model
from moeparity.plan.bind import bind
from moeparity.plan.engine_profile import load_profile, overrides
from moeparity.plan.schedule.steps import MicroBatches
from tests.errors.base import BASE

RECIPE = f"""
kind: recipe
checkpoint: {BASE}
tokens: {{file: {BASE}/tokens.safetensors, sampled_from: candidate}}
reference: {{profile: hf-eager}}
candidate: {{profile: hf-default}}
gate: {{metric: k3, below: 1.0e-4}}
"""


def calls_of(model: Model, sequences: int, length: int) -> duration.Amounts:
    plan = bind(model.graph, load_profile("hf-eager", Where(Path("x"))), "bf16")
    walker = Walker(name="one", plan=plan, schedule=MicroBatches(1))
    return duration.amounts_of(Values([walker], model.graph, sequences, length))


def test_per_token_a_model_multiplies_its_active_weights(tmp_path: Path) -> None:
    """Two layers of Qwen3-30B-A3B: each 18.9 M of attention, 0.26 M of router, eight experts of 4.7 M; and the head,
    311 M. A token goes through as many weights as it multiplies; a second one in the same batch through other experts.
    """
    (tmp_path / "config.json").write_bytes(shipped("configs", "json")["qwen3_moe"].read_bytes())
    model = open_model(tmp_path, device="cpu", synthetic=0)
    single, two = (calls_of(model, 1, length).of for length in (1, 2))
    key, weights = (duration.MULTIPLY_ADDS, "bf16"), (duration.WEIGHT_BYTES, "bf16")
    assert 0.42e9 < single[key] < 0.43e9
    assert single[weights] == pytest.approx(2 * single[key], rel=0.01)
    assert two[key] == pytest.approx(2 * single[key], rel=0.01)
    assert two[weights] - single[weights] == pytest.approx(2 * 2 * 8 * (1 - 8 / 128) * 3 * 2048 * 768, rel=0.01)
    # A micro-batch of one sequence each.
    assert calls_of(model, 3, 2).of[weights] == pytest.approx(3 * two[weights])


def test_variants_that_differ_late_add_what_is_computed_after(qwen3_moe: Path) -> None:
    """The first of three layers is shared, and a draw calls every kernel once more, in one variant."""
    model = open_model(qwen3_moe, device="cpu", synthetic=0)
    profile = load_profile("hf-eager", Where(Path("x")))
    late = overrides({"layers[2].moe.experts:activation": "fp32"}, Where(Path("x")))
    plans = [bind(model.graph, profile, "bf16", rules) for rules in ((), late)]
    walkers = [Walker(name=i, plan=plan, schedule=MicroBatches(2)) for i, plan in enumerate(plans)]
    alone = duration.amounts_of(Values(walkers[:1], model.graph, 2, 5))
    together = duration.amounts_of(Values(walkers, model.graph, 2, 5))
    calls = (duration.CALLS, "")
    names = [node.name for node in model.graph.nodes]
    assert alone.of[calls] == len(names)
    assert together.of[calls] == 2 * len(names) - names.index("layers[2].moe.experts")
    assert together.repeated(3).of[calls] == together.of[calls] + 3 * len(names)
    both_loaded = estimate(walkers, model.weights, 2, 5).amounts
    entries = model.weights.checkpoint.entries.values()
    matrices = sum(math.prod(entry.shape) for entry in entries if len(entry.shape) > 1)
    assert both_loaded.of[duration.DRAWN, ""] == matrices
    assert both_loaded.of[calls] == together.of[calls]


def test_rates_stand_for_each_other_by_width() -> None:
    amounts = duration.Amounts(of={(duration.MULTIPLY_ADDS, "fp16"): 10, (duration.CALLS, ""): 3, ("other", ""): 9})
    rates = duration.Rates(seconds={
        (duration.MULTIPLY_ADDS, "bf16"): 2.0, (duration.MULTIPLY_ADDS, "fp64"): 7.0, (duration.CALLS, ""): 1.0
    })  # fmt: skip
    assert rates.seconds_of(amounts) == 23.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("envelope: 1000000000", "envelope is 1,000,000,000; expected at most 1,000 draws"),
        (
            "tokens: {file: T, sample: {from: candidate, new_tokens: 1000000, temperature: 1.0}}",
            "expected at most 100,000",
        ),
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
