"""`bisect --dry-run`: time, memory and disk before the run, at rates given, and nothing is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer.testing

from moeparity.bisection import cost
from moeparity.bisection.options import Options
from moeparity.bisection.pipeline import bisect, passes_over, ready
from moeparity.bisection.rates import MachineRates
from moeparity.bisection.spikes.search import MOST
from moeparity.cli.commands import app
from moeparity.engine.duration import CALLS, DRAWN, MADE, MOVED, Rates
from tests.errors.base import BASE

RECIPE = f"""
kind: recipe
checkpoint: {BASE}
tokens: {{file: {BASE}/tokens.safetensors, sampled_from: candidate}}
reference: {{profile: hf-eager}}
candidate: {{profile: hf-default}}
gate: {{metric: k3, below: 1.0e-4}}
"""
RECIPES = Path(__file__).parents[2] / "recipes"
CALL = Rates(seconds={(CALLS, ""): 1.0})


def recipe(folder: Path, more: str = "", text: str = RECIPE) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text + more, "utf-8")
    return path


def test_what_is_expected_bounds_what_it_takes(tmp_path: Path) -> None:
    """Calls, variants and bytes against the run itself; more is shared there than can be known before."""
    path = recipe(tmp_path)
    before = cost.expected(path, device="cpu", rates=CALL)
    _, observed = passes_over(ready(path, device="cpu"), None)
    assert before.seconds >= sum(observed.cost.counts.evaluations.values()) > before.seconds / 10
    assert before.footprint.total == pytest.approx(observed.cost.memory.estimated)
    assert before.stored == observed.cost.counts.bytes_read


@pytest.mark.parametrize("name", ["quickstart", "moe-aggregation", "fused-norm", "tensor-parallel", "decode"])
def test_evaluations_are_those_of_the_run_within_a_factor_of_two(name: str) -> None:
    path = RECIPES / f"{name}.yaml"
    options = Options(attribute=False, split=0)
    before = cost.expected(path, device="cpu", rates=CALL, options=options)
    _, observed = passes_over(ready(path, device="cpu", options=options), None)
    assert 0.5 < before.seconds / sum(observed.cost.counts.evaluations.values()) < 2


@pytest.mark.parametrize("name", ["saturated", "fp32-background", "fused-norm", "log-probs", "moe-aggregation"])
def test_mixtures_are_those_of_the_run_within_a_factor_of_two(name: str) -> None:
    path, options = RECIPES / f"{name}.yaml", Options(attribute=True, split=0)
    before = cost.expected(path, device="cpu", rates=CALL, options=options).mixtures
    report = bisect(path, device="cpu", options=options)
    assert before is not None
    assert report.attribution is not None
    assert before.fewest / 2 <= report.attribution.mixtures <= 2 * before.most


def test_further_passes_are_in_the_range(tmp_path: Path) -> None:
    path = recipe(tmp_path)
    alone, shared = (
        cost.expected(path, device="cpu", rates=CALL, options=Options(attribute=to)) for to in (False, True)
    )
    assert alone.mixtures is None
    assert alone.total == (alone.total[0],) * 2
    assert shared.mixtures is not None
    assert alone.total[0] <= shared.total[0] < shared.total[1]
    assert f"{shared.mixtures} for `attribute`" in dict(shared.rows)["passes"]
    assert " to " in dict(shared.rows)["time"]


def test_options_change_what_is_expected(tmp_path: Path) -> None:
    path = recipe(tmp_path)
    usual, bare, drawn = (
        cost.expected(path, device="cpu", rates=CALL, options=options)
        for options in (Options(), Options(attribution=False), Options(envelope=3))
    )
    assert bare.variants < usual.variants
    assert bare.seconds < usual.seconds < drawn.seconds
    more = cost.expected(path, device="cpu", rates=CALL, options=Options(split=2, attribute=True, memory_limit=3e9))
    assert "up to 2 more for `split`" in dict(more.rows)["passes"]
    assert "`attribute`" in dict(more.rows)["passes"]
    assert dict(more.rows)["memory"].endswith("3.00 GB may be taken")


def test_synthetic_weights_are_drawn_and_none_is_read(tmp_path: Path) -> None:
    rates = Rates(seconds={(DRAWN, ""): 1e-3, (MADE, ""): 0.0, (MOVED, ""): 0.0})
    before = cost.expected(recipe(tmp_path, "weights: synthetic(0)\n"), device="cpu", rates=rates)
    assert before.loading == before.seconds > 0
    assert (before.stored, before.checking) == (0, 0.0)
    assert "made from a seed" in dict(before.rows)["disk"]


def test_nothing_is_run_and_no_weight_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr("moeparity.inputs.model.check_values", refused)
    monkeypatch.setattr("moeparity.engine.passes.run", refused)
    monkeypatch.setattr(cost, "machine_rates", lambda *_: MachineRates(rates=CALL, date="today", file=None))
    answer = typer.testing.CliRunner().invoke(app, ["bisect", str(recipe(tmp_path)), "--dry-run", "--device", "cpu"])
    assert answer.exit_code == 0, answer.output
    assert [line.split()[0] for line in answer.output.splitlines() if line[:1].strip()] == [
        "work", "time", "of", "memory", "disk", "passes", "rates"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.44, "0.4 s"), (12.3, "12 s"), (200, "3 min"), (18720, "5.2 hours"), (267840, "3.1 days")],
)
def test_times_for_people(seconds: float, text: str) -> None:
    assert cost.shown_time(seconds) == text


def test_replays_that_are_planted_are_as_many_as_run(tmp_path: Path) -> None:
    """What `--dry-run` says of a ladder is what the run plants: one line for each."""
    path = recipe(tmp_path, "replay: true\nfloor: false\n")
    before = cost.expected(path, device="cpu", rates=CALL)
    plain = cost.expected(path, device="cpu", rates=CALL, options=Options(replay=False))
    report = bisect(path, device="cpu")
    assert report.replay is not None
    planted = len(report.replay.traps)
    assert (before.forced["replay"].fewest, before.forced["replay"].most) == (planted, planted)
    assert f"two of {planted} trials with forced routes for `replay`" in dict(before.rows)["passes"]
    assert before.total[0] > before.starting + before.checking + before.sampling + before.seconds
    assert plain.forced["replay"].most == 0
    assert "forced" not in dict(plain.rows)["passes"]


def test_routes_forced_for_spikes_are_bounded(tmp_path: Path) -> None:
    orders = 'set: {"layers[*].moe.combine:order": unordered(0)}'
    text = RECIPE.replace("{profile: hf-default}", f"{{profile: hf-default, {orders}}}")
    before = cost.expected(recipe(tmp_path, "spikes: {draws: 5}\n", text), device="cpu", rates=CALL)
    assert (before.forced["spikes"].fewest, before.forced["spikes"].most) == (0, 5 + 2 * MOST)
    assert before.total[0] < before.total[1]
    assert f"two of 0 to {5 + 2 * MOST} trials with forced routes for `spikes`" in dict(before.rows)["passes"]
