"""The difference of two plans: one entry per node and choice, with everything that changes along with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeparity.plan.difference import Difference, differences
from moeparity.plan.graph import Graph
from moeparity.plan.sides import Side
from moeparity.plan.toggles import toggles
from tests.plan.configs import QWEN3_MOE, bound, graph


@pytest.fixture
def qwen(tmp_path: Path) -> Graph:
    return graph(tmp_path, QWEN3_MOE)


def test_equal_plans_do_not_differ(qwen: Graph, tmp_path: Path) -> None:
    rules = "rules:\n  - {op: gate, set: {output: fp32}}\n"
    assert differences(bound(qwen, tmp_path, rules), bound(qwen, tmp_path, rules, name="other")) == []


def named(found: list[Difference]) -> list[tuple[str, str, str]]:
    return [(d.rule.label, d.node.name, d.attribute) for d in found]


def test_one_difference_per_node_and_attribute(qwen: Graph, tmp_path: Path) -> None:
    rules = (
        "rules:\n  - {op: combine, set: {weighted: fp32, accumulate: fp32}}\n"
        '  - {nodes: "**.gate", set: {output: fp32}}\n'
    )
    found = differences(bound(qwen, tmp_path, "rules: []\n"), bound(qwen, tmp_path, rules, name="other"))
    assert named(found)[:3] == [
        ("**.gate", "layers[0].moe.gate", "output"),
        ("op combine", "layers[0].moe.combine", "weighted"),
        ("op combine", "layers[0].moe.combine", "accumulate"),
    ]
    assert len(found) == 6
    assert found[0].places == (("layers[0].moe.gate", "output"),)
    assert (found[0].reference, found[0].candidate, found[0].kind) == ("model (bf16)", "fp32", "rounding")


def test_the_references_rule_names_it_where_the_candidate_has_a_default(qwen: Graph, tmp_path: Path) -> None:
    rules = "rules:\n  - {op: gate, set: {output: fp32}, flag: --fp32-gate}\n"
    found = differences(bound(qwen, tmp_path, rules), bound(qwen, tmp_path, "rules: []\n", name="other"))
    assert {(d.rule.label, d.rule.flag, d.candidate_origin) for d in found} == {
        ("op gate", "--fp32-gate", "default of the op")
    }


def test_what_takes_effect_on_one_side_only_is_folded_into_what_switches_it_on(qwen: Graph, tmp_path: Path) -> None:
    eager = bound(qwen, tmp_path, "rules:\n  - {op: attention, set: {implementation: eager, scores: fp32}}\n")
    sdpa = bound(qwen, tmp_path, "rules:\n  - {op: attention, set: {implementation: sdpa}}\n", name="other")
    found = differences(eager, sdpa)
    assert {d.attribute for d in found} == {"implementation"}
    places = [place for d in found for place in d.places]
    assert ("layers[0].attention.attend", "scores") in places
    assert ("layers[0].attention.attend", "probabilities") not in places
    assert sdpa.with_settings(places, eager).settings == eager.settings


def test_what_takes_effect_on_neither_side_is_none(qwen: Graph, tmp_path: Path) -> None:
    one = bound(qwen, tmp_path, "rules:\n  - {op: rms_norm, set: {association: weight_rstd_first}}\n")
    assert differences(bound(qwen, tmp_path, "rules: []\n", name="other"), one) == []


def test_model_is_the_dtype_it_stands_for(qwen: Graph, tmp_path: Path) -> None:
    written = bound(qwen, tmp_path, "rules:\n  - {op: gate, set: {output: bf16}}\n")
    assert differences(bound(qwen, tmp_path, "rules: []\n", name="other"), written) == []


def test_two_dtypes_are_one_difference(qwen: Graph, tmp_path: Path) -> None:
    half = bound(qwen, tmp_path, "rules: []\n", dtype="fp16")
    full = bound(qwen, tmp_path, "rules: []\n", dtype="fp32", name="other")
    assert [(d.node.name, d.attribute) for d in differences(half, full)] == [(n.name, "dtype") for n in qwen.nodes]
    (toggle,) = toggles(Side(plan=half, micro_batch=2), Side(plan=full, micro_batch=2))
    assert (toggle.name, toggle.reference, toggle.candidate) == ("dtype", "fp16", "fp32")


def test_what_goes_along_with_a_choice_is_folded_into_it(qwen: Graph, tmp_path: Path) -> None:
    """The combine rounds products only where the experts leave their scores to it."""
    rules = "rules:\n  - {op: combine, set: {weighted: fp32}}\n  - {op: experts, set: {score_site: epilogue}}\n"
    plain = bound(qwen, tmp_path, "rules: []\n")
    epilogue = bound(qwen, tmp_path, rules, name="other")
    found = differences(plain, epilogue)
    assert {(d.node.op.name, d.attribute) for d in found} == {("experts", "score_site")}
    places = [place for d in found for place in d.places]
    assert ("layers[0].moe.combine", "weighted") in places
    assert epilogue.with_settings(places, plain).settings == plain.settings
