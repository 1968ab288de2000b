"""A score that is applied elsewhere, and a scale: one toggle moves the maker and all that go along with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeparity.ops.attribute import Value
from tests.planted.places import bisected, random_tokens, write_recipe

EPILOGUE: dict[str, Value] = {
    "layers[1].moe.experts:score_site": "epilogue",
    "layers[1].moe.combine:weighted": "fp32",
    "layers[1].moe.combine:accumulate": "fp32",
}


def test_the_score_site_is_a_toggle_beside_what_is_set_for_another(tmp_path: Path, qwen3_moe: Path) -> None:
    ids = {"input_ids": random_tokens(4, 48)}
    bisection = bisected(write_recipe(tmp_path, qwen3_moe, ids, {}, {"set": EPILOGUE}))
    assert {t.members[0].attribute for t in bisection.study.toggles} == {"score_site", "weighted", "accumulate"}
    assert {root.node for root in bisection.report.roots} == {"layers[1].moe.experts"}
    (score_site,) = [t for t in bisection.report.toggles if t.name.endswith("score_site")]
    assert not score_site.had_no_effect
    assert not score_site.restores_all, "the accumulator differs too"


@pytest.mark.parametrize("scaling", ["accumulator", "output", "shared_add", "shared_fma"])
def test_the_scale_is_one_toggle(tmp_path: Path, deepseek_v3: Path, scaling: str) -> None:
    ids = {"input_ids": random_tokens(4, 48)}
    settings = {"layers[1].moe.router:scaling": scaling}
    bisection = bisected(write_recipe(tmp_path, deepseek_v3, ids, {}, {"set": settings}))
    (toggle,) = bisection.report.toggles
    assert toggle.restores_all
    assert [root.node for root in bisection.report.roots] == ["layers[1].moe.router"]
    # The same sum in exact arithmetic: a scale that was lost or applied twice would be seen.
    assert toggle.alone.kl < 1e-3


@pytest.mark.parametrize("shared", ["first", "last", "slot"])
def test_the_shared_expert_is_added_once(tmp_path: Path, deepseek_v3: Path, shared: str) -> None:
    ids = {"input_ids": random_tokens(4, 48)}
    settings = {"layers[1].moe.combine:shared": shared}
    bisection = bisected(write_recipe(tmp_path, deepseek_v3, ids, {}, {"set": settings}))
    (toggle,) = bisection.report.toggles
    assert toggle.restores_all
    assert [root.node for root in bisection.report.roots] == ["layers[1].moe.combine"]
    assert toggle.alone.kl < 1e-3
