"""The difference of two plans: one entry per node and choice, with everything that changes along with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeparity.plan.difference import Difference, TwoSided, differences, each_once, two_sided
from moeparity.plan.graph import Graph
from moeparity.plan.schedule.settings import ScheduleSettings
from moeparity.plan.sides import Side
from moeparity.plan.toggles import toggles
from tests.plan.configs import QWEN3_MOE, bound, graph


@pytest.fixture
def qwen(tmp_path: Path) -> Graph:
    return graph(tmp_path, QWEN3_MOE)


def test_equal_plans_do_not_differ(qwen: Graph, tmp_path: Path) -> None:
    rules = "rules:\n  - {op: gate, set: {output: fp32}}\n"
    assert differences(bound(qwen, tmp_path, rules), bound(qwen, tmp_path, rules, name="other")) == []


def rows(choices: list[Difference]) -> list[tuple[str, str, str]]:
    return [(d.rule.label, d.node.name, d.attribute) for d in choices]


def test_one_difference_per_node_and_attribute(qwen: Graph, tmp_path: Path) -> None:
    rules = (
        "rules:\n  - {op: combine, set: {weighted: fp32, accumulate: fp32}}\n"
        '  - {nodes: "**.gate", set: {output: fp32}}\n'
    )
    choices = differences(bound(qwen, tmp_path, "rules: []\n"), bound(qwen, tmp_path, rules, name="other"))
    assert rows(choices)[:3] == [
        ("**.gate", "layers[0].moe.gate", "output"),
        ("op combine", "layers[0].moe.combine", "weighted"),
        ("op combine", "layers[0].moe.combine", "accumulate"),
    ]
    assert len(choices) == 6
    assert choices[0].places == (("layers[0].moe.gate", "output"),)
    assert (choices[0].reference, choices[0].candidate, choices[0].kind) == ("model (bf16)", "fp32", "rounding")


def test_the_references_rule_names_it_where_the_candidate_has_a_default(qwen: Graph, tmp_path: Path) -> None:
    rules = "rules:\n  - {op: gate, set: {output: fp32}, set_by: --fp32-gate}\n"
    choices = differences(bound(qwen, tmp_path, rules), bound(qwen, tmp_path, "rules: []\n", name="other"))
    assert {(d.rule.label, d.rule.set_by, d.candidate_origin) for d in choices} == {
        ("op gate", "--fp32-gate", "default of the op")
    }


def test_what_takes_effect_on_neither_side_is_none(qwen: Graph, tmp_path: Path) -> None:
    plan = bound(qwen, tmp_path, "rules:\n  - {op: rms_norm, set: {association: weight_rstd_first}}\n")
    assert differences(bound(qwen, tmp_path, "rules: []\n", name="other"), plan) == []


def test_model_is_the_dtype_it_stands_for(qwen: Graph, tmp_path: Path) -> None:
    explicit = bound(qwen, tmp_path, "rules:\n  - {op: gate, set: {output: bf16}}\n")
    assert differences(bound(qwen, tmp_path, "rules: []\n", name="other"), explicit) == []


def test_two_dtypes_are_one_difference(qwen: Graph, tmp_path: Path) -> None:
    half = bound(qwen, tmp_path, "rules: []\n", dtype="fp16")
    full = bound(qwen, tmp_path, "rules: []\n", dtype="fp32", name="other")
    assert [(d.node.name, d.attribute) for d in differences(half, full)] == [(n.name, "dtype") for n in qwen.nodes]
    (toggle,) = toggles(
        Side(plan=half, schedule=ScheduleSettings(batch=2)), Side(plan=full, schedule=ScheduleSettings(batch=2))
    )
    assert (toggle.name, toggle.reference, toggle.candidate) == ("dtype", "fp16", "fp32")


def test_a_choices_two_sides_are_handed_on_as_arguments(qwen: Graph, tmp_path: Path) -> None:
    rules = "rules:\n  - {op: gate, set: {output: fp32}}\n"
    (choice,) = differences(bound(qwen, tmp_path, "rules: []\n"), bound(qwen, tmp_path, rules, name="other"))[:1]
    assert TwoSided(**two_sided(choice)) == TwoSided(
        reference=choice.reference,
        candidate=choice.candidate,
        reference_origin=choice.reference_origin,
        candidate_origin=choice.candidate_origin,
        reference_set_by="",
        candidate_set_by="other",
    )


def test_words_of_several_settings_are_said_once() -> None:
    """A fusion's settings share flags, also where one of them already lists what it is in several phases."""
    assert each_once(["--fuse; --ring", "--fuse; --invariant", "", "--ring"]) == "--fuse; --ring; --invariant"
