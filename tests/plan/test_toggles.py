"""Differences as switches: which there are, and that thrown together they turn one side into the other, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest

from moeparity.bisection.observers import Changes
from moeparity.engine.lockstep import run
from moeparity.engine.walker import Walker
from moeparity.errors import Where
from moeparity.inputs.model import Model, open_model
from moeparity.ops.attribute import Value
from moeparity.plan.bind import bind
from moeparity.plan.bound import Plan
from moeparity.plan.engine_profile import Profile, load_profile, overrides
from moeparity.plan.schedule.settings import ScheduleSettings
from moeparity.plan.schedule.steps import Groups
from moeparity.plan.sides import CANDIDATE, REFERENCE, Side, micro_batches, side_of
from moeparity.plan.spec.variant_schema import Placement
from moeparity.plan.toggles import Toggle, mixed, toggles
from tests.planted.places import random_tokens

Settings = dict[str, Value]


@lru_cache(maxsize=4)
def cached_model(folder: Path) -> Model:
    return open_model(folder, device="cpu", residency="resident")


def side(
    folder: Path,
    choices: Settings | None = None,
    *,
    profile: str = "hf-eager",
    dtype: str = "bf16",
    micro_batch: int = 4,
) -> Side:
    where = Where(Path(__file__))

    def bound(of: Profile) -> Plan:
        return bind(cached_model(folder).graph, of, dtype, overrides(choices or {}, where))

    return side_of(load_profile(profile, where), bound, ScheduleSettings(batch=micro_batch), Placement())


def names(bundles: list[Toggle]) -> list[str]:
    return [toggle.name for toggle in bundles]


def test_hf_eager_against_hf_default_with_an_own_set(qwen3_moe: Path) -> None:
    reference = side(qwen3_moe)
    candidate = side(qwen3_moe, {"layers[*].moe.gate:output": "fp32"}, profile="hf-default")
    bundles = toggles(reference, candidate)
    assert [(t.name, t.kind, t.reference, t.candidate, len(t.nodes)) for t in bundles] == [
        ("op attention:implementation", "form", "eager", "sdpa", 3),
        ("layers[*].moe.gate:output", "rounding", "model (bf16)", "fp32", 3),
        ("op experts:implementation", "form", "loop", "grouped", 3),
        ("op combine:accumulate", "rounding", "model (bf16)", "fp32", 3),
        ("op combine:leaves", "order", "expert", "slot", 3),
        ("op combine:order", "order", "sequential", "native", 3),
    ]
    assert all("hf-eager.yaml" in t.reference_origin for t in bundles if t.kind in ("form", "order"))
    assert bundles[1].reference_origin.endswith("(op gate)")
    sdpa, gate = bundles[0], bundles[1]
    assert sdpa.reference_set_by == 'attn_implementation="eager" (hf-eager)'
    assert sdpa.reference_changed_by == 'leaving out attn_implementation="eager"'
    assert sdpa.candidate_set_by == "default (hf-default)"
    assert sdpa.candidate_changed_by == 'attn_implementation="eager"'
    assert (gate.reference_set_by, gate.candidate_set_by) == ("default (hf-eager)", "")
    assert (gate.reference_changed_by, gate.candidate_changed_by) == ("", "")
    assert bundles[1].candidate_origin.endswith("test_toggles.py (layers[*].moe.gate)")


def test_equal_sides_have_no_toggle(qwen3_moe: Path) -> None:
    assert toggles(side(qwen3_moe), side(qwen3_moe)) == []
    # The same values by other rules, spelled otherwise, are no difference.
    by_selector = side(qwen3_moe, {"layers[*].moe.gate:output": "fp32"})
    by_layer = side(qwen3_moe, {f"layers[{i}].moe.gate:output": "fp32" for i in range(3)})
    assert toggles(by_selector, by_layer) == []


def test_both_sides_set_the_attribute_by_rules_of_their_own(qwen3_moe: Path) -> None:
    reference = side(qwen3_moe, {"layers[*].moe.gate:output": "fp16"})
    candidate = side(qwen3_moe, {f"layers[{i}].moe.gate:output": "fp32" for i in (1, 2)})
    bundles = toggles(reference, candidate)
    assert [(t.name, t.reference, t.candidate, t.nodes) for t in bundles] == [
        ("layers[*].moe.gate:output", "fp16", "model (bf16)", ("layers[0].moe.gate",)),
        ("layers[1].moe.gate:output", "fp16", "fp32", ("layers[1].moe.gate",)),
        ("layers[2].moe.gate:output", "fp16", "fp32", ("layers[2].moe.gate",)),
    ]
    assert bundles[0].candidate_origin.endswith("(op gate)")
    assert all(t.reference_origin.endswith("(layers[*].moe.gate)") for t in bundles)


def test_one_rule_against_several_values_makes_toggles_with_names_of_their_own(qwen3_moe: Path) -> None:
    reference = side(qwen3_moe, {"layers[0].moe.gate:output": "fp16"})
    candidate = side(qwen3_moe, {"layers[*].moe.gate:output": "fp32"})
    bundles = toggles(reference, candidate)
    assert names(bundles) == [
        "layers[*].moe.gate:output fp16 -> fp32",
        "layers[*].moe.gate:output model (bf16) -> fp32",
    ]
    assert [t.nodes for t in bundles] == [("layers[0].moe.gate",), ("layers[1].moe.gate", "layers[2].moe.gate")]


ONE_SIDED: dict[str, tuple[Settings, Settings, list[str]]] = {
    "attention": (
        {"layers[1].attention.attend:scores": "fp32", "layers[1].attention.attend:probabilities": "fp32"},
        {"layers[1].attention.attend:implementation": "sdpa"},
        # The profile sets both sites for every form.
        ["implementation", "scores", "probabilities"],
    ),
    "router": (
        {"layers[1].moe.router:slots": "unsorted"},
        {"layers[1].moe.router:tie_break": "lowest_index"},
        ["tie_break", "slots"],
    ),
    "norm": (
        {"layers[1].moe.norm:normalized": "fp32", "layers[1].moe.norm:association": "weight_rstd_first"},
        {"layers[1].moe.norm:normalized": "bf16"},
        ["normalized"],
    ),
}


@pytest.mark.parametrize("case", ONE_SIDED)
def test_an_attribute_in_effect_on_one_side_goes_along_unless_it_is_set(qwen3_moe: Path, case: str) -> None:
    ours, theirs, attributes = ONE_SIDED[case]
    for a, b in ((ours, theirs), (theirs, ours)):
        reference, candidate = side(qwen3_moe, a), side(qwen3_moe, b)
        assert [t.members[0].attribute for t in toggles(reference, candidate)] == attributes
        assert_all_together_are_the_other_side(cached_model(qwen3_moe), reference, candidate)


ROUNDING: Settings = {"layers[*].moe.combine:weighted": "fp32", "lm_head:output": "fp32"}
ORDER: Settings = {"layers[*].moe.combine:order": "reverse", "layers[1].moe.combine:leaves": "slot"}
FORM: Settings = {"layers[*].moe.router:renormalize": "reciprocal", "layers[*].moe.router:weights": "fp32"}
SEMANTICS: Settings = {"layers[*].moe.router:tie_break": "lowest_index", "norm:eps": 1e-3}
EVERYTHING = ROUNDING | ORDER | FORM | SEMANTICS
# `association` takes effect where `normalized` is fp32, as `model` is in fp32.
SWITCHED_BY_DTYPE: Settings = {"**norm:association": "weight_rstd_first"}


@pytest.mark.parametrize(
    "settings",
    [ROUNDING, ORDER, FORM, SEMANTICS, EVERYTHING, SWITCHED_BY_DTYPE],
    ids=["rounding", "order", "form", "semantics", "all", "switched_by_dtype"],
)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("micro_batch", [4, 3])
@pytest.mark.parametrize("profile", ["hf-eager", "hf-default"])
def test_all_toggles_together(qwen3_moe: Path, settings: Settings, dtype: str, micro_batch: int, profile: str) -> None:
    reference = side(qwen3_moe)
    candidate = side(qwen3_moe, settings, profile=profile, dtype=dtype, micro_batch=micro_batch)
    bundles = toggles(reference, candidate)
    assert ("dtype" in names(bundles), "micro_batch" in names(bundles)) == (dtype != "bf16", micro_batch != 4)
    assert len(set(names(bundles))) == len(bundles)
    assert_all_together_are_the_other_side(cached_model(qwen3_moe), reference, candidate)


def test_which_sequences_a_group_attends_to_is_placement(qwen3_moe: Path) -> None:
    """Not the schedule, whose parts say which tokens an engine takes together."""
    reference = side(qwen3_moe)
    apart = replace(reference.schedule, groups=Groups(2))
    kinds = {t.name: t.kind for t in toggles(reference, replace(reference, schedule=replace(apart, batch=3)))}
    assert kinds == {"placement attention": "placement", "micro_batch": "schedule"}


def test_all_toggles_together_with_mla(deepseek_v3: Path) -> None:
    reference, candidate = side(deepseek_v3), side(deepseek_v3, profile="hf-default", dtype="fp32", micro_batch=3)
    assert [t.kind for t in toggles(reference, candidate)][-2:] == ["dtype", "schedule"]
    assert_all_together_are_the_other_side(cached_model(deepseek_v3), reference, candidate)


def assert_all_together_are_the_other_side(model: Model, reference: Side, candidate: Side) -> None:
    """Not only the plans: the bits of every node of either mixture, logits among them."""
    bundles = toggles(reference, candidate)
    variants = {
        REFERENCE: reference,
        CANDIDATE: candidate,
        "thrown": mixed(reference, bundles, candidate),
        "restored": mixed(candidate, bundles[::-1], reference),
    }
    pairs = [("thrown", CANDIDATE), ("restored", REFERENCE)]
    for mixture, pure in pairs:
        assert variants[mixture].schedule == variants[pure].schedule
        for node in model.graph.nodes:
            assert variants[mixture].plan.active(node) == variants[pure].plan.active(node), node.name
            assert variants[mixture].plan.dtype_of(node.name) == variants[pure].plan.dtype_of(node.name), node.name
    changes = Changes(pairs)
    walkers = [Walker(name=name, plan=s.plan, schedule=micro_batches(s)) for name, s in variants.items()]
    run(walkers, model.weights, random_tokens(4, 6), [changes])
    assert changes.nodes == {pair: set() for pair in pairs}
