"""Fusions and sites on edges: which nodes they match, what they set, and which mistakes are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeparity.errors import MoeparityError
from moeparity.plan.graph import Graph
from moeparity.plan.match import chains
from moeparity.plan.setting import edges_of
from tests.plan.configs import QWEN3_MOE, bound, graph

EDGE = "output->layers[0].moe.norm"
FUSION = """fusions:
  - name: add_norm
    chain: [add, rms_norm]
    set: {"add:output->rms_norm": fp32, "rms_norm:normalized": fp32}
"""


@pytest.fixture
def qwen(tmp_path: Path) -> Graph:
    return graph(tmp_path, QWEN3_MOE)


def test_chains_cross_layers_and_reach_the_final_norm(qwen: Graph) -> None:
    assert list(chains(qwen, ("add", "rms_norm"))) == [
        ("layers[0].attention.residual", "layers[0].moe.norm"),
        ("layers[0].moe.residual", "layers[1].attention.norm"),
        ("layers[1].attention.residual", "layers[1].moe.norm"),
        ("layers[1].moe.residual", "norm"),
    ]
    assert list(chains(qwen, ("add", "rms_norm", "gate"))) == [
        (f"layers[{i}].attention.residual", f"layers[{i}].moe.norm", f"layers[{i}].moe.gate") for i in (0, 1)
    ]
    assert list(chains(qwen, ("gate", "add"))) == []


def test_a_fusion_sets_its_chains_only(qwen: Graph, tmp_path: Path) -> None:
    plan = bound(qwen, tmp_path, FUSION)
    assert plan.settings["layers[0].attention.residual", EDGE].value == "fp32"
    assert plan.settings["layers[0].moe.norm", "normalized"].value == "fp32"
    # No residual stands before the first norm, and none before those of q and k.
    assert plan.settings["layers[0].attention.norm", "normalized"].value == "model"
    assert plan.settings["layers[0].attention.q_norm", "normalized"].value == "model"
    # The stream itself stays as it is: only the norm is handed another rounding.
    residual = next(node for node in qwen.nodes if node.name == "layers[0].attention.residual")
    assert plan.edges(residual) == {"layers[0].moe.norm": ("output", "fp32")}
    assert set(edges_of(qwen, residual)) == {("output", "layers[0].moe.norm"), ("output", "layers[0].moe.residual")}
    assert plan.active(residual) == {"output": "bf16", "stage": "goes_on"}


def test_precedence_is_extends_then_fusions_then_rules_then_set(qwen: Graph, tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        "kind: profile\nname: base\nrules:\n  - {op: rms_norm, set: {normalized: fp16}}\n", "utf-8"
    )
    place = ("layers[0].moe.norm", "normalized")
    assert bound(qwen, tmp_path, "extends: ./base.yaml\n" + FUSION).settings[place].value == "fp32"
    rule = FUSION + "rules:\n  - {op: rms_norm, set: {normalized: bf16}}\n"
    assert bound(qwen, tmp_path, rule).settings[place].value == "bf16"
    assert bound(qwen, tmp_path, rule, choices='"**.norm:normalized": fp16').settings[place].value == "fp16"


def test_a_recipe_sets_an_edge_by_selectors_or_by_the_consumers_op(qwen: Graph, tmp_path: Path) -> None:
    by_op = bound(qwen, tmp_path, "rules: []\n", choices='"layers[*].attention.residual:output->rms_norm": fp32')
    by_name = bound(
        qwen,
        tmp_path,
        "rules: []\n",
        choices='"layers[*].attention.residual:output->layers[*].moe.norm": fp32',
        name="b",
    )
    for plan in (by_op, by_name):
        places = [place for place, setting in plan.settings.items() if setting.rule is not None]
        assert places == [(f"layers[{i}].attention.residual", f"output->layers[{i}].moe.norm") for i in (0, 1)]


WRONG = {
    "no attribute": ('{"add": fp32}', "'add' names no attribute"),
    "another op": ('{"gate:output": fp32}', "names op 'gate', which stands in the chain not at all"),
    "another consumer": ('{"add:output->gate": fp32}', "names op 'gate', which stands in the chain not at all"),
    "backwards": ('{"rms_norm:output->add": fp32}', "add does not follow rms_norm in the chain"),
    "no such site": ('{"add:sum->rms_norm": fp32}', "op add has no site 'sum' on its edges; it has output."),
    "value": ('{"add:output->rms_norm": keep}', "add:output on an edge is 'keep'; expected one of stored, model,"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_fusion_that_makes_no_sense_is_refused(qwen: Graph, tmp_path: Path, case: str) -> None:
    values, message = WRONG[case]
    rules = f"fusions:\n  - name: x\n    chain: [add, rms_norm]\n    set: {values}\n"
    with pytest.raises(MoeparityError) as caught:
        bound(qwen, tmp_path, rules)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "mine.yaml:6"))


def test_an_op_twice_in_a_chain_cannot_be_named(qwen: Graph, tmp_path: Path) -> None:
    rules = 'fusions:\n  - name: x\n    chain: [add, rms_norm, linear, rms_norm]\n    set: {"rms_norm:output": fp32}\n'
    with pytest.raises(MoeparityError, match="stands in the chain twice; expected one of add, linear"):
        bound(qwen, tmp_path, rules)


def test_an_edge_that_is_not_there_is_refused(qwen: Graph, tmp_path: Path) -> None:
    with pytest.raises(MoeparityError, match="names no edge") as caught:
        bound(qwen, tmp_path, "rules: []\n", choices='"layers[0].attention.residual:output->lm_head": fp32')
    assert "which is read by layers[0].moe.norm, layers[0].moe.residual" in str(caught.value)


def test_only_sites_of_which_the_result_is_one_value_have_edges(qwen: Graph, tmp_path: Path) -> None:
    with pytest.raises(MoeparityError, match="op gate has no site 'output' on its edges; it has none"):
        bound(qwen, tmp_path, "rules: []\n", choices='"layers[0].moe.gate:output->router": fp32')
