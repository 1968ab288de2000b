"""The difference of two plans: one entry per rule and attribute, with everything that changes along with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeparity.attribution.toggles import Side, toggles
from moeparity.graph.difference import differences
from moeparity.graph.graph import Graph
from tests.graph.configs import QWEN3_MOE, bound, graph


@pytest.fixture
def qwen(tmp_path: Path) -> Graph:
    return graph(tmp_path, QWEN3_MOE)


def test_equal_plans_do_not_differ(qwen: Graph, tmp_path: Path) -> None:
    rules = "rules:\n  - {op: gate, set: {output: fp32}}\n"
    assert differences(bound(qwen, tmp_path, rules), bound(qwen, tmp_path, rules, name="other")) == []


def test_one_difference_per_rule_and_attribute(qwen: Graph, tmp_path: Path) -> None:
    rules = (
        "rules:\n  - {op: combine, set: {weighted: fp32, accumulate: fp32}}\n"
        '  - {nodes: "**.gate", set: {output: fp32}}\n'
    )
    found = differences(bound(qwen, tmp_path, "rules: []\n"), bound(qwen, tmp_path, rules, name="other"))
    assert [d.label for d in found] == ["**.gate:output", "op combine:weighted", "op combine:accumulate"]
    assert found[0].nodes == ("layers[0].moe.gate", "layers[1].moe.gate")
    assert found[0].places == tuple((node, "output") for node in found[0].nodes)
    assert (found[0].reference, found[0].candidate, found[0].kind) == ("model", "fp32", "rounding")


def test_two_rules_on_one_attribute_are_two_differences(qwen: Graph, tmp_path: Path) -> None:
    own = '"layers[0].moe.gate:output": fp32\n    "layers[1].moe.gate:output": fp32'
    found = differences(bound(qwen, tmp_path, "rules: []\n"), bound(qwen, tmp_path, "rules: []\n", own=own, name="o"))
    assert [d.label for d in found] == ["layers[0].moe.gate:output", "layers[1].moe.gate:output"]


def test_the_references_rule_names_it_where_the_candidate_has_a_default(qwen: Graph, tmp_path: Path) -> None:
    rules = "rules:\n  - {op: gate, set: {output: fp32}, flag: --fp32-gate}\n"
    (found,) = differences(bound(qwen, tmp_path, rules), bound(qwen, tmp_path, "rules: []\n", name="other"))
    assert (found.label, found.flag, found.candidate_origin) == ("op gate:output", "--fp32-gate", "default of the op")


def test_what_takes_effect_on_one_side_only_is_folded_into_what_switches_it_on(qwen: Graph, tmp_path: Path) -> None:
    eager = bound(qwen, tmp_path, "rules:\n  - {op: attention, set: {implementation: eager, scores: fp32}}\n")
    sdpa = bound(qwen, tmp_path, "rules:\n  - {op: attention, set: {implementation: sdpa}}\n", name="other")
    (found,) = differences(eager, sdpa)
    assert found.label == "op attention:implementation"
    assert ("layers[0].attention.attend", "scores") in found.places
    assert ("layers[0].attention.attend", "probabilities") not in found.places
    assert sdpa.with_settings(found.places, eager).settings == eager.settings


def test_what_takes_effect_on_neither_side_is_none(qwen: Graph, tmp_path: Path) -> None:
    one = bound(qwen, tmp_path, "rules:\n  - {op: rms_norm, set: {association: weight_rstd_first}}\n")
    assert differences(bound(qwen, tmp_path, "rules: []\n", name="other"), one) == []


def test_model_is_the_dtype_it_stands_for(qwen: Graph, tmp_path: Path) -> None:
    written = bound(qwen, tmp_path, "rules:\n  - {op: gate, set: {output: bf16}}\n")
    assert differences(bound(qwen, tmp_path, "rules: []\n", name="other"), written) == []


def test_two_dtypes_are_one_difference(qwen: Graph, tmp_path: Path) -> None:
    half = bound(qwen, tmp_path, "rules: []\n", dtype="fp16")
    full = bound(qwen, tmp_path, "rules: []\n", dtype="fp32", name="other")
    assert differences(half, full) == []
    (toggle,) = toggles(Side(plan=half, micro_batch=2), Side(plan=full, micro_batch=2))
    assert (toggle.name, toggle.reference, toggle.candidate) == ("dtype", "fp16", "fp32")
