"""Differences of placement as toggles: one choice each, thrown and restored with all that hangs on it."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

import pytest

from moeparity.bisection.observers import Changes
from moeparity.bisection.pipeline import bisect
from moeparity.bisection.report import Report
from moeparity.engine.lockstep import run
from moeparity.engine.walker import Walker
from moeparity.errors import SpecError, Where
from moeparity.inputs.model import Model, open_model
from moeparity.ops.attribute import Value
from moeparity.plan.bind import bind
from moeparity.plan.difference import differences
from moeparity.plan.engine_profile import load_profile, overrides, placement_rules
from moeparity.plan.schedule.settings import ScheduleSettings
from moeparity.plan.sides import CANDIDATE, REFERENCE, Side, micro_batches
from moeparity.plan.spec.base import By
from moeparity.plan.spec.variant_schema import Placement
from moeparity.plan.toggles import mixed, split, toggles
from tests.planted.places import random_tokens, write_recipe
from tests.two_layers import two_layers

# Two layers tell a choice of one from a choice of all.
globals().update({name: two_layers(name) for name in ("qwen3_moe", "qwen3_moe_mha", "qwen2_moe", "deepseek_v3")})

Variant = dict[str, Any]
BUNDLES: tuple[By, ...] = get_args(By)


@lru_cache(maxsize=4)
def cached_model(folder: Path) -> Model:
    return open_model(folder, device="cpu", residency="resident")


def side(folder: Path, variant: Variant) -> Side:
    where = Where(Path(__file__))
    settings: dict[str, Value] = variant.get("set", {})
    plan = bind(
        cached_model(folder).graph,
        load_profile(variant.get("profile", "hf-eager"), where),
        variant.get("dtype", "bf16"),
        overrides(settings, where),
        placement=placement_rules(Placement(**variant.get("placement", {})), where),
    )
    return Side(plan=plan, schedule=ScheduleSettings(batch=variant.get("micro_batch", 2)))


def report_of(
    folder: Path, checkpoint: Path, reference: Variant, candidate: Variant, *, floor: bool = False, **options: Any
) -> Report:
    variants = ({"micro_batch": 2, **variant} for variant in (reference, candidate))
    path = write_recipe(folder, checkpoint, {"input_ids": random_tokens(2, 7)}, *variants, floor=floor)
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | options), "utf-8")
    return bisect(path, device="cpu")


FOUR: Variant = {"placement": {"tensor": 4}}
LATER = {"**.combine_reduce:reduce": "later", "**.shared_reduce:reduce": "later"}
LOOP = {"**.experts:implementation": "loop"}
NONE = {"layers[*].*.reduce:collective": "none", "layers[*].*.reduce:accumulate": "fp32"}
ONE_TOGGLE: dict[str, tuple[str, Variant, Variant, str, str, str, str]] = {
    "one rank against four": ("qwen3_moe", {}, FOUR, "placement tensor", "placement", "1", "4"),
    "four against one": ("qwen3_moe", FOUR, {}, "placement tensor", "placement", "4", "1"),
    "two against four": (
        *("deepseek_v3", {"placement": {"tensor": 2}}, FOUR),
        *("placement tensor", "placement", "2", "4"),
    ),
    "experts on ranks": (
        *("qwen2_moe", {}, {"placement": {"expert": 4}}),
        *("placement expert", "placement", "1", "4"),
    ),
    "sequence parallel": (
        *("qwen3_moe", FOUR, {"placement": {"tensor": 4, "sequence": True}}),
        *("placement sequence", "placement", "whole", "scattered"),
    ),
    "row-wise against column-wise": (
        "qwen3_moe",
        {**FOUR, "profile": "dtensor-rowwise", "set": LOOP},
        {**FOUR, "profile": "dtensor-columnwise", "set": LOOP},
        *("op linear:parallel", "placement", "plan", "column"),
    ),
    "the library": (
        *("deepseek_v3", FOUR, {**FOUR, "set": {"layers[*].*.*reduce:collective": "flashinfer.one_shot"}}),
        *("layers[*].*.*reduce:collective", "order", "gloo.all_reduce", "flashinfer.one_shot"),
    ),
    "the bias": (
        "qwen3_moe_mha",
        FOUR,
        {**FOUR, "set": {"**.o_proj:bias": "after"}},
        *("**.o_proj:bias", "form", "shared", "after"),
    ),
}


@pytest.mark.parametrize("case", ONE_TOGGLE)
def test_one_choice_is_one_toggle_and_restores_all_bits(
    request: pytest.FixtureRequest, tmp_path: Path, case: str
) -> None:
    name, reference, candidate, *expected = ONE_TOGGLE[case]
    report = report_of(tmp_path, request.getfixturevalue(name), reference, candidate)
    (toggle,) = report.toggles
    assert [toggle.name, toggle.kind, toggle.reference, toggle.candidate] == expected
    assert toggle.alone.changed_nodes == toggle.restored.changed_nodes > 0
    assert (toggle.restored.kl, toggle.restored.k3, toggle.restored.flipped_routes) == (0.0, 0.0, 0.0)
    assert toggle.restores_all
    assert toggle.alone.kl == report.metrics.kl
    assert report.roots


BETWEEN: dict[str, tuple[str, Variant, Variant]] = {
    "a library for one dtype": (
        "qwen3_moe",
        {**FOUR, "dtype": "fp32", "set": {"layers[*].*.reduce:collective": "openmpi.ring"}},
        {**FOUR, "set": {"layers[*].*.reduce:collective": "torch.symm_mem_two_shot"}},
    ),
    "degrees": ("qwen2_moe", {"placement": {"tensor": 2}}, {"placement": {"tensor": 4}, "set": LATER}),
    "one rank": ("deepseek_v3", {}, {"placement": {"tensor": 4, "expert": 4}, "set": {**LATER, **NONE}}),
    "kinds": ("qwen2_moe", {"placement": {"tensor": 4}}, {"placement": {"expert": 4}, "profile": "hf-default"}),
    "numerics too": (
        "qwen3_moe_mha",
        {"placement": {"tensor": 2}},
        {
            "profile": "dtensor-columnwise",
            "placement": {"tensor": 4, "sequence": True},
            "set": {
                "**.experts:implementation": "loop",
                "**.experts:partial": "fp32",
                "layers[*].moe.reduce:collective": "nccl.ring",
                "lm_head:splits": 2,
            },
        },
    ),
    "blocks": (
        "qwen3_moe",
        {"placement": {"tensor": 2}},
        {"set": {"**.o_proj:blocks": 8, "**.o_proj:partial": "fp32", "**.experts:blocks": 4, **NONE}},
    ),
    "dtype": ("qwen3_moe", FOUR, {**FOUR, "dtype": "fp32"}),
}


@pytest.mark.parametrize("by", BUNDLES)
@pytest.mark.parametrize("case", BETWEEN)
def test_all_toggles_together_are_the_other_side(request: pytest.FixtureRequest, case: str, by: By) -> None:
    """Whatever they are bundled by: the plans, and the bits of every node of either mixture."""
    name, ours, theirs = BETWEEN[case]
    folder = request.getfixturevalue(name)
    reference, candidate = side(folder, ours), side(folder, theirs)
    bundles = toggles(reference, candidate, by)
    members = [member for toggle in bundles for member in toggle.members]
    assert sorted(map(repr, members)) == sorted(map(repr, differences(reference.plan, candidate.plan)))
    variants = {
        REFERENCE: reference,
        CANDIDATE: candidate,
        "thrown": mixed(reference, bundles, candidate),
        "restored": mixed(candidate, bundles[::-1], reference),
    }
    pairs = [("thrown", CANDIDATE), ("restored", REFERENCE)]
    for mixture, pure in pairs:
        assert differences(variants[mixture].plan, variants[pure].plan) == []
        assert variants[mixture].plan.partials == variants[pure].plan.partials
    changes = Changes(pairs)
    walkers = [Walker(name=name, plan=s.plan, schedule=micro_batches(s)) for name, s in variants.items()]
    run(walkers, cached_model(folder).weights, random_tokens(2, 6), [changes])
    assert changes.nodes == {pair: set() for pair in pairs}


@pytest.mark.parametrize("case", BETWEEN)
def test_toggles_are_taken_apart_without_losing_any(request: pytest.FixtureRequest, case: str) -> None:
    """To single differences; a mixture is a plan that runs, or is refused in a user's words."""
    name, ours, theirs = BETWEEN[case]
    folder = request.getfixturevalue(name)
    reference, candidate = side(folder, ours), side(folder, theirs)
    queue, names, refusals = list(toggles(reference, candidate)), set[str](), []
    while queue:
        toggle = queue.pop()
        assert toggle.name not in names
        names.add(toggle.name)
        parts = split(toggle)
        assert not parts or sorted(repr(m) for p in parts for m in p.members) == sorted(map(repr, toggle.members))
        queue += parts
        for base, source in ((reference, candidate), (candidate, reference)):
            try:
                mixed(base, [toggle], source)
            except SpecError as error:
                refusals.append(str(error))
    assert len(names) > 1
    assert all(error.endswith(".") for error in refusals)


# One bundling for each: above every case is taken apart by each of them, and a pass knows of plans only. The finer one
# is slow where everything differs.
RUN_BY: dict[str, By] = {
    "a library for one dtype": "block",
    "degrees": "node",
    "one rank": "node",
    "kinds": "block",
    "numerics too": "block",
    "blocks": "node",
    "dtype": "block",
}


@pytest.mark.parametrize("case", BETWEEN)
def test_a_bisection_runs_however_it_is_bundled(request: pytest.FixtureRequest, tmp_path: Path, case: str) -> None:
    """With a further pass, swaps and the floor; nothing is said to have had no effect that had one."""
    name, ours, theirs = BETWEEN[case]
    swap = ["layers[0]", "layers[*].attention", "layers[1].moe"]
    checkpoint = request.getfixturevalue(name)
    report = report_of(tmp_path, checkpoint, ours, theirs, floor=True, by=RUN_BY[case], split=1, swap=swap)
    assert report.metrics.kl > 0
    assert report.toggles
    assert report.roots


def test_clipped_heads_are_still_heads(olmoe_clip: Path) -> None:
    """Four heads, clipped between their norm and attention, cannot be shared by eight ranks."""
    with pytest.raises(SpecError, match="4 heads of q do not divide by 8 ranks"):
        side(olmoe_clip, {"set": {"layers[*].attention.attend:tensor": 8}})
