"""Which setting wins, where it says it comes from, and which settings take effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeparity.documents.checked import shipped
from moeparity.errors import SpecError, Where
from moeparity.plan.bind import bind
from moeparity.plan.engine_profile import load_profile
from moeparity.plan.graph import Graph
from tests.plan.configs import DEEPSEEK_V3, QWEN3_MOE, bound, graph

GATE = ("layers[0].moe.gate", "output")
COMBINE = ("layers[0].moe.combine", "order")


@pytest.fixture
def qwen(tmp_path: Path) -> Graph:
    return graph(tmp_path, QWEN3_MOE)


def test_defaults_of_the_ops_come_first(qwen: Graph, tmp_path: Path) -> None:
    plan = bound(qwen, tmp_path, "rules: []\n")
    assert (plan.settings[GATE].value, plan.settings[GATE].origin) == ("model", "default of the op")


def test_what_extends_overrides_what_it_extends(qwen: Graph, tmp_path: Path) -> None:
    plan = bound(qwen, tmp_path, "extends: hf-eager\nrules:\n  - {op: combine, set: {order: reverse}}\n")
    assert plan.settings[COMBINE].value == "reverse"
    assert plan.settings["layers[0].moe.combine", "leaves"].value == "expert"


def test_the_recipes_own_set_overrides_the_profile(qwen: Graph, tmp_path: Path) -> None:
    plan = bound(
        qwen,
        tmp_path,
        "rules:\n  - {op: gate, set: {output: fp32}}\n",
        choices='"layers[0].moe.gate:output": fp16',
    )
    assert plan.settings[GATE].value == "fp16"
    assert plan.settings["layers[1].moe.gate", "output"].value == "fp32"


def test_origins_name_file_line_and_rule(qwen: Graph, tmp_path: Path) -> None:
    rules = 'extends: hf-eager\nrules:\n  - {op: rope, set: {output: fp32}}\n  - nodes: "*"\n    set: {output: fp32}\n'
    rules = rules.replace('"*"', '"**.gate"')
    settings = '"lm_head:output": fp32\n    "layers[1].moe.gate:inputs": fp32'
    plan = bound(qwen, tmp_path, rules, choices=settings)
    mine, recipe = Where(tmp_path / "mine.yaml", 6), Where(tmp_path / "mine-recipe.yaml", 9)
    assert plan.settings[GATE].origin == f"{mine} (**.gate)"
    assert plan.settings["layers[1].moe.gate", "inputs"].origin == f"{recipe} (layers[1].moe.gate)"
    line = shipped("profiles")["hf-eager"].read_text("utf-8").split("\n").index("  - op: combine") + 1
    assert plan.settings[COMBINE].origin.endswith(f"hf-eager.yaml:{line} (op combine)")


def test_rules_for_another_model_type_are_passed_over(qwen: Graph, tmp_path: Path) -> None:
    rules = "rules:\n  - {op: gate, model_type: [deepseek_v3], set: {output: fp32}}\n"
    assert bound(qwen, tmp_path, rules).settings[GATE].value == "model"
    deepseek = graph(tmp_path / "deepseek", DEEPSEEK_V3)
    assert bound(deepseek, tmp_path, rules).settings["layers[1].moe.gate", "output"].value == "fp32"


def test_a_rule_for_an_op_may_match_nothing(qwen: Graph, tmp_path: Path) -> None:
    assert bound(qwen, tmp_path, "rules:\n  - {op: mla, set: {implementation: sdpa}}\n").graph is qwen


@pytest.mark.parametrize(("text", "number"), [("1e-6", 1e-6), ("1", 1.0), ("config", "config")])
def test_numbers(qwen: Graph, tmp_path: Path, text: str, number: float | str) -> None:
    plan = bound(qwen, tmp_path, f"rules:\n  - {{op: rms_norm, set: {{eps: {text}}}}}\n")
    value = plan.settings["norm", "eps"].value
    assert value == number
    assert type(value) is type(number)


def test_model_becomes_the_dtype_of_the_variant(qwen: Graph, tmp_path: Path) -> None:
    node = next(node for node in qwen.nodes if node.name == GATE[0])
    plan = bound(qwen, tmp_path, "rules: []\n", dtype="fp16")
    assert {plan.settings[node.name, site].value for site in ("inputs", "output")} == {"model"}
    assert plan.active(node) == {"inputs": "fp16", "output": "fp16", "order": "native", "rows": "all", "splits": 1}


def test_conditions_decide_which_settings_take_effect(qwen: Graph, tmp_path: Path) -> None:
    node = next(node for node in qwen.nodes if node.op.name == "attention")
    eager = bound(qwen, tmp_path, "rules:\n  - {op: attention, set: {implementation: eager, scores: fp32}}\n")
    sdpa = bound(qwen, tmp_path, "rules:\n  - {op: attention, set: {implementation: sdpa, scores: fp32}}\n")
    assert eager.active(node)["scores"] == "fp32"
    assert "scores" not in sdpa.active(node)
    assert sdpa.settings[node.name, "scores"].value == "fp32"


def test_inputs_that_are_not_read_under_the_settings(qwen: Graph, tmp_path: Path) -> None:
    node = next(node for node in qwen.nodes if node.op.name == "combine")
    by_slot = bound(qwen, tmp_path, "rules:\n  - {op: combine, set: {leaves: slot}}\n")
    by_expert = bound(qwen, tmp_path, "rules:\n  - {op: combine, set: {leaves: expert}}\n")
    assert by_slot.read_inputs(node)[1] is None
    assert by_expert.read_inputs(node) == node.inputs


def test_attributes_of_a_parameter_exist_only_where_it_is_set(tmp_path: Path) -> None:
    plain = graph(tmp_path, QWEN3_MOE, norm_topk_prob=False)
    plan = bound(plain, tmp_path, "rules:\n  - {op: router, set: {renormalize: reciprocal}}\n")
    assert ("layers[0].moe.router", "renormalize") not in plan.settings


def test_equal_values_from_two_rules_are_no_conflict(qwen: Graph, tmp_path: Path) -> None:
    rules = 'rules:\n  - {op: gate, set: {output: fp32}}\n  - {nodes: "**.gate", set: {output: fp32}}\n'
    assert bound(qwen, tmp_path, rules).settings[GATE].value == "fp32"


def test_different_values_in_one_profile_are(qwen: Graph, tmp_path: Path) -> None:
    rules = 'rules:\n  - {op: gate, set: {output: fp32}}\n  - {nodes: "**.gate", set: {output: bf16}}\n'
    with pytest.raises(SpecError, match=r"mine.yaml:5: \*\*.gate sets .* but line 4 \(op gate\)"):
        bound(qwen, tmp_path, rules)


def test_shipped_profiles_bind_to_every_shipped_graph(tmp_path: Path) -> None:
    for fields in (QWEN3_MOE, DEEPSEEK_V3):
        of = graph(tmp_path / str(fields["model_type"]), fields)
        for name in ("hf-eager", "hf-default"):
            assert bind(of, load_profile(name, Where(tmp_path)), "bf16").settings


def test_the_combine_goes_along_with_the_experts_and_the_router(tmp_path: Path) -> None:
    sparse = graph(tmp_path, DEEPSEEK_V3)
    nodes = {node.name.rpartition(".")[2]: node for node in sparse.nodes if node.layer == 1}
    combine, experts, shared_add = (nodes[name] for name in ("combine", "experts", "shared_add"))
    plain = bound(sparse, tmp_path, "rules: []\n")
    assert plain.told_to(combine) == {"score_site": "combine", "scaling": "weights"}
    assert plain.read_inputs(experts)[2] is None
    assert plain.read_inputs(combine)[2:] == (combine.inputs[2], None)
    rules = "rules:\n  - {op: experts, set: {score_site: epilogue}}\n  - {op: router, set: {scaling: shared_add}}\n"
    epilogue = bound(sparse, tmp_path, rules, name="moved")
    assert epilogue.told_to(combine) == {"score_site": "epilogue", "scaling": "shared_add"}
    assert epilogue.told_to(shared_add) == {"shared": "add", "scaling": "shared_add"}
    assert epilogue.read_inputs(experts) == experts.inputs
    assert epilogue.read_inputs(combine) == (combine.inputs[0], None, None, None)
    assert "weighted" not in epilogue.active(combine)
    slot = bound(sparse, tmp_path, "rules:\n  - {op: combine, set: {shared: slot}}\n", name="inside")
    assert slot.read_inputs(combine)[3] == combine.inputs[3]
    assert slot.read_inputs(shared_add) == (shared_add.inputs[0], None)
