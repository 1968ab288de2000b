"""Shares, parts and fix sets of a real run, against formulas and runs of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from moeparity.bisection.measures import summarise
from moeparity.bisection.mixtures import Mixtures
from moeparity.bisection.observed import Observed
from moeparity.bisection.options import Options
from moeparity.bisection.pipeline import bisect, passes_over, ready
from moeparity.bisection.shares.search import Searched, shared_out
from moeparity.bisection.study import Study
from moeparity.check.recipes import check
from moeparity.engine.routes import IDS
from moeparity.errors import SpecError
from moeparity.plan.toggles import split
from moeparity.search.memo import Mixture, Outcome
from moeparity.search.roles import Role
from tests.opened import opened
from tests.planted.places import random_tokens, write_recipe
from tests.search.games import shapley, subsets

OWN = {
    "layers[1].moe.gate:output": "bf16",
    "lm_head:output": "bf16",
    "layers[*].moe.combine:weighted": "bf16",
    # Nothing reads the sums of the other form: no bit changes.
    "layers[*].moe.experts:implementation": "grouped",
}
NOISY = {"layers[*].attention.attend:probabilities": "fp32", "layers[*].moe.experts:activation": "fp32"}
"""Two of many roundings of a bf16 side."""
GATE = 2e-7

PADDED_ROWS = """
import torch
import torch.nn.functional as F


def norm(x, *, node):
    (weight,), (params,) = node.weights.values(), node.params.values()
    wide = x.float()
    y = weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + params["eps"])).to(x.dtype)
    y[:, :2] = 1000
    return y


def head(x, *, node):
    (weight,) = node.weights.values()
    y = F.linear(x, weight)
    return torch.where(x.amax(-1, keepdim=True) >= 1000, 2 * y, y)
"""
"""A norm that spoils the padding, which is two tokens on the left, and a head that differs on what is spoilt."""


@dataclass(frozen=True, slots=True)
class Run:
    study: Study
    observed: Observed
    blame: Searched
    every: dict[Mixture, Outcome | None]
    """Every mixture, of an oracle of its own that was told nothing."""


def recipe(
    folder: Path,
    checkpoint: Path,
    *,
    dtype: str = "fp32",
    below: float = GATE,
    **more: object,
) -> Path:
    """Four bf16 sites on an fp32 side, whose shares can be told apart."""
    side: dict[str, object] = {"dtype": dtype, "micro_batch": 5}
    tokens = {"input_ids": random_tokens(25, 9)}
    path = write_recipe(folder, checkpoint, tokens, side, {**side, "set": more.pop("settings", OWN)}, below=below)
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **more}, indent=1), "utf-8")
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, qwen3_moe: Path) -> Run:
    path = recipe(tmp_path_factory.mktemp("blame"), qwen3_moe, costs=dict.fromkeys(OWN, 1.0))
    study, observed = passes_over(ready(path, device="cpu"), None)
    whole_blame = shared_out(study, observed)
    assert whole_blame is not None
    return Run(study, observed, whole_blame, dict(Mixtures(study)(subsets(t.name for t in study.toggles))))


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory, qwen3_moe: Path) -> tuple[Study, Observed, Searched]:
    path = recipe(tmp_path_factory.mktemp("noisy"), qwen3_moe, settings=NOISY, dtype="bf16")
    study, observed = passes_over(ready(path, device="cpu", options=Options(attribute=True)), None)
    assert study.recipe.attribute
    whole_blame = shared_out(study, observed)
    assert whole_blame is not None
    return study, observed, whole_blame


def values(outcomes: Mapping[Mixture, Outcome | None]) -> dict[Mixture, float]:
    return {mixture: outcome.value for mixture, outcome in outcomes.items() if outcome is not None}


def test_shares_are_shapley_values_and_add_up_to_the_candidates_divergence(run: Run) -> None:
    names = [toggle.name for toggle in run.study.toggles]
    rows = {row.name: row for row in run.blame.shares.shares}
    assert list(rows) == names
    assert run.blame.shares.exact
    assert {name: row.share for name, row in rows.items()} == shapley(tuple(names), values(run.every))
    whole = run.every[frozenset(names)]
    assert whole is not None
    assert sum(row.share for row in rows.values()) == run.blame.shares.total == Fraction(whole.value)
    assert rows["layers[*].moe.experts:implementation"].role is Role.NO_EFFECT
    assert rows["lm_head:output"].role is Role.CULPRIT


def test_forced_shares_are_those_of_mixtures_with_the_references_routes(
    noisy: tuple[Study, Observed, Searched],
) -> None:
    study, _, whole_blame = noisy
    assert whole_blame.forced is not None
    names = [toggle.name for toggle in study.toggles]
    forced = dict(Mixtures(study, routes=IDS)(subsets(names)))
    assert {row.name: row.share for row in whole_blame.forced.shares} == shapley(tuple(names), values(forced))
    assert whole_blame.forced.total != whole_blame.shares.total


def test_the_fix_sets_are_the_minimal_ones_of_all_subsets(run: Run) -> None:
    names = [toggle.name for toggle in run.study.toggles]

    def passing(restored: Mixture) -> bool:
        outcome = run.every[frozenset(names) - restored]
        return outcome is not None and (outcome.exact or outcome.upper < GATE)

    minimal = [s for s in subsets(names) if passing(s) and not any(passing(less) for less in subsets(s) if less != s)]
    assert [frozenset(fix.toggles) for fix in run.blame.fixes.sets] == minimal != []
    assert run.blame.fixes.complete
    stays_on = run.blame.may_stay
    assert stays_on is not None
    assert set(stays_on.toggles) == set(names) - min(minimal, key=len)
    assert stays_on.cost == min(map(len, minimal))


def test_every_smallest_fix_restored_in_a_recipe_of_its_own_passes(run: Run, tmp_path: Path, qwen3_moe: Path) -> None:
    restored = run.blame.fixes.sets[0].toggles
    settings = {name: value for name, value in OWN.items() if name not in restored}
    assert summarise(run.study, run.observed).verdict.status == "fail"
    assert bisect(recipe(tmp_path, qwen3_moe, settings=settings), device="cpu").verdict.status == "pass"


def test_mixtures_are_walked_once_in_fewer_passes_than_one_by_one(run: Run) -> None:
    names = [toggle.name for toggle in run.study.toggles]
    asked_before = 2 * len(names)
    natural = len(subsets(names)) - asked_before
    forced = 0 if run.blame.forced is None else len(subsets(names))
    parts = run.blame.mixtures - natural - forced
    assert parts >= 0, "what the first pass saw is not walked again"
    assert run.blame.passes < run.blame.mixtures / 4


def test_the_part_that_makes_the_share_is_found(tmp_path: Path, qwen3_moe: Path) -> None:
    settings = {"layers[*].moe.combine:weighted": "bf16", "lm_head:output": "bf16"}
    study, observed = passes_over(ready(recipe(tmp_path, qwen3_moe, settings=settings), device="cpu"), None)
    whole_blame = shared_out(study, observed)
    assert whole_blame is not None
    assert whole_blame.inside is not None
    rows = {row.name: row for row in whole_blame.inside.shares}
    toggle, early, *leaves = (rows[f"layers[{which}].moe.combine:weighted"] for which in ("*", "0:2", "0", "1", "2"))
    assert [row.depth for row in (toggle, early, *leaves)] == [0, 1, 2, 2, 1]
    assert early.share == leaves[0].share + leaves[1].share
    assert toggle.share == early.share + leaves[2].share
    halves = split(study.toggles[0])
    parts = [*study.toggles, *halves, *split(halves[0])]
    names = [frozenset({leaf.name}) for leaf in leaves]
    alone = Mixtures(replace(study, toggles=tuple(parts)))(names)
    assert [alone[name] for name in names] == [leaf.alone for leaf in leaves]


EPS = "layers[*].moe.router:renormalize_eps"
ROUNDINGS = {"layers[*].moe.combine:accumulate": "fp32", "layers[*].attention.attend:probabilities": "fp32"}


def among_roundings(folder: Path, **more: object) -> Path:
    """A wrong eps in the router, as large as two roundings of bf16; `more` is set on both sides."""
    shipped = Path(__file__).parents[3]
    side = {"profile": "hf-eager", "micro_batch": 8, **more}
    recipe = {
        "kind": "recipe",
        "checkpoint": str(shipped / "checkpoints" / "quickstart"),
        "tokens": {"file": str(shipped / "recipes" / "rounding.safetensors"), "sampled_from": "candidate"},
        "reference": side,
        "candidate": {**side, "set": {EPS: 0.005, **ROUNDINGS}},
        "gate": {"metric": "k3", "below": 1e-4},
        "floor": False,
        "attribute": not more,
        "mixtures": 8,
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(recipe), "utf-8")
    return path


def test_roundings_are_interchangeable_and_a_wrong_eps_among_them_is_judged_apart(tmp_path: Path) -> None:
    report = bisect(among_roundings(tmp_path), device="cpu")
    attribution = report.attribution
    assert attribution is not None
    assert attribution.forced is not None
    assert attribution.apart is not None
    roles = {row.name: row.role for row in attribution.shares.rows}
    assert roles == {**dict.fromkeys(ROUNDINGS, "saturated"), EPS: "contributes"}
    restored, of_forced = (
        {row.name: row for row in shares.rows}[EPS] for shares in (attribution.shares, attribution.forced)
    )
    assert attribution.apart.toggles == (EPS,)
    assert (attribution.apart.without, attribution.apart.forced_without) == (restored.restored, of_forced.restored)
    assert (attribution.apart.change_low, attribution.apart.change_high) == (restored.change_low, restored.change_high)
    assert attribution.apart.forced == attribution.forced.total
    (interchangeable,) = [sentence for sentence in report.reading if "interchangeable" in sentence]
    assert EPS not in interchangeable
    (apart,) = [sentence for sentence in report.reading if "no rounding but another function" in sentence]
    assert apart.startswith(EPS)
    # The eps stays in fp32, so that it is no floor of rounding; measured by a recipe of its own.
    assert attribution.in_fp32 == bisect(among_roundings(tmp_path, dtype="fp32"), device="cpu").metrics.kl > 0


def test_without_toggles_nothing_is_shared_out(tmp_path: Path, qwen3_moe: Path) -> None:
    report = bisect(recipe(tmp_path, qwen3_moe, settings={}, attribute=True), device="cpu")
    assert report.attribution is None


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ({"lm_head:outptu": 1.0}, "which is no toggle of this recipe; .* Did you mean 'lm_head:output'"),
        ({"lm_head:output": 1.0}, "costs has nothing for .*layers.1..moe.gate:output"),
    ],
)
def test_costs_are_one_for_each_toggle(tmp_path: Path, qwen3_moe: Path, costs: dict[str, float], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        bisect(recipe(tmp_path, qwen3_moe, costs=costs), device="cpu")


def test_shares_and_fixes_are_expected_of_a_recipe(run: Run, tmp_path: Path, qwen3_moe: Path) -> None:
    fix = list(run.blame.fixes.sets[0].toggles)
    expect = {
        "shares": {
            "lm_head:output": {"above": 0.05, "below": 0.99},
            "layers[*].moe.experts:implementation": {"above": 0.1},
        },
        "saturated": ["lm_head:output"],
        "smallest_fix": fix,
    }
    outcome = check(recipe(tmp_path, qwen3_moe, attribute=True, expect=expect), device="cpu")
    assert outcome.error is None
    assert [finding.status for finding in outcome.findings] == ["ok", "fail", "fail", "ok"]
    undecided = check(recipe(tmp_path, qwen3_moe, attribute=False, expect=expect), device="cpu")
    assert undecided.error is not None
    assert "expect.shares needs shares, and this recipe takes none. Add `attribute: true`." in undecided.error


@pytest.mark.usefixtures("brief_search")
def test_what_changes_padding_alone_has_an_effect_though_no_sum_shows_it(tmp_path: Path, qwen3_moe: Path) -> None:
    (tmp_path / "padded_rows.py").write_text(PADDED_ROWS, "utf-8")
    impls = [{"nodes": node, "call": f"padded_rows:{call}"} for node, call in (("norm", "norm"), ("lm_head", "head"))]
    tokens = {"input_ids": random_tokens(6, 8), "attention_mask": (torch.arange(8) >= 2).repeat(6, 1)}
    path = write_recipe(tmp_path, qwen3_moe, tokens, {"micro_batch": 3}, {"micro_batch": 3, "impl": impls})
    report = bisect(path, device="cpu", options=Options(allow_code=True, attribute=True), opener=opened)
    head = next(toggle for toggle in report.toggles if toggle.name == "lm_head:impl")
    assert head.alone is not None
    assert head.restored is not None
    assert (head.alone.changed_nodes, head.restored.changed_nodes > 0, head.restored.kl) == (0, True, 0.0)
    assert report.attribution is not None
    assert {row.name: row.role for row in report.attribution.shares.rows}["lm_head:impl"] == "undecided"
