"""A value that rests in a side, in a report: what its trials are, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moeparity import bisect
from moeparity.bisection.report import Report
from tests.bisection.reports import on_screen
from tests.opened import opened
from tests.planted.places import random_tokens, write_recipe

TIMING = {f"layers[{layer}].moe.router:timing": "after_topk" for layer in (0, 1)}
EPS = {"layers[*].moe.router:renormalize_eps": 0.05}
ROUTER = "layers[2].moe.router"


def report_of(folder: Path, checkpoint: Path, reference: dict[str, Any], candidate: dict[str, Any]) -> Report:
    tokens = {"input_ids": random_tokens(4, 8)}
    path = write_recipe(folder, checkpoint, tokens, {"set": reference}, {"set": candidate})
    return bisect(path, device="cpu", opener=opened)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, qwen3_moe: Path) -> Report:
    """The candidate ranks by logits in two of three layers, where its eps has nothing to do."""
    return report_of(tmp_path_factory.mktemp("resting"), qwen3_moe, {}, {**TIMING, **EPS})


def test_a_restored_trial_is_the_candidate_without_that_line(tmp_path: Path, qwen3_moe: Path, report: Report) -> None:
    trials = {toggle.name: toggle.restored for toggle in report.toggles}
    for line in TIMING:
        others = {name: value for name, value in TIMING.items() if name != line}
        restored, written = trials[line], report_of(tmp_path, qwen3_moe, {}, {**others, **EPS}).metrics
        assert restored is not None
        assert restored.kl == written.kl != report.metrics.kl
    assert not any(toggle.had_no_effect for toggle in report.toggles)


def test_the_report_says_where_a_value_rests(report: Report) -> None:
    (eps,) = (toggle for toggle in report.toggles if toggle.name in EPS)
    assert (eps.nodes, eps.reference_resting, eps.candidate_resting) == (3, 0, 2)
    assert "takes no effect in the candidate at 2 of 3 nodes" in on_screen(report)


def test_a_root_names_only_choices_that_take_effect_on_both_sides(report: Report) -> None:
    choices = {root.node: [choice.attribute for choice in root.choices] for root in report.roots}
    assert choices[ROUTER] == ["renormalize_eps"]
    assert all(names == ["timing"] for node, names in choices.items() if node != ROUTER)


def test_numerics_are_not_blamed_for_an_eps_they_hide(tmp_path: Path, qwen3_moe: Path) -> None:
    """The reference's timing hides the eps that the candidate sets everywhere: without that line all bits agree."""
    timing, eps = {"layers[1:3].moe.router:timing": "after_topk"}, {"layers[*].moe.router:renormalize_eps": 0.05}
    report = report_of(tmp_path, qwen3_moe, timing, eps)
    without = report_of(tmp_path, qwen3_moe, timing, {})
    (restored,) = (toggle.restored for toggle in report.toggles if toggle.name in eps)
    assert restored is not None
    assert restored.kl == without.metrics.kl
