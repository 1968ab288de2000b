"""Rules by a model's sizes: they hold on both sides of every bound as they say, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from moeparity.plan.config import Config
from moeparity.plan.expand import expand
from moeparity.plan.schedule.cases import Sizes as StepSizes
from moeparity.plan.sizes import Size
from moeparity.profiles.compare import architectures, statements
from tests.plan.configs import DEEPSEEK_V3, LLAMA, QWEN3_MOE, bound, graph

ROUTER = ("layers[0].moe.router", "denominator")


def stated(folder: Path, line: str, fields: dict[str, Any], **changes: Any) -> Any:
    """What a rule with these sizes leaves at the first router of a model, with other fields than usual."""
    rules = f"rules:\n  - {{op: router, sizes: {{{line}}}, set: {{denominator: fold_hi}}}}\n"
    return bound(graph(folder, fields, **changes), folder, rules).settings[ROUTER].value


@pytest.mark.parametrize(
    ("line", "holding"),
    [
        ("experts: 8", [8]),
        ("experts: [4, 8, 60]", [4, 8]),
        ("experts: {from: 6}", [6, 7, 8, 9]),
        ("experts: {from: 6, below: 8}", [6, 7]),
        ("experts: {multiple_of: 4}", [4, 8]),
        ("experts: {from: 5, multiple_of: 2}", [6, 8]),
        ("experts: {below: 9}, top_k: 2, hidden: {multiple_of: 2}", [4, 5, 6, 7, 8]),
        ("experts: 8, top_k: 3", []),
        # No size of this model.
        ("groups: {from: 1}", []),
    ],
)
def test_a_rule_holds_for_the_sizes_it_names(line: str, holding: list[int], tmp_path: Path) -> None:
    values = {
        count: stated(tmp_path, line, QWEN3_MOE, num_experts=count, num_experts_per_tok=2) for count in range(4, 10)
    }
    assert [count for count, value in values.items() if value == "fold_hi"] == holding


def test_every_size_is_some_models_and_every_model_has_those_of_its_kind() -> None:
    sizes = {name: expand(Config(path)).sizes for name, path in architectures().items()}
    assert {name for of_model in sizes.values() for name in of_model} >= set(get_args(Size))
    for name, of_model in sizes.items():
        assert {"hidden", "vocab", "heads"} <= set(of_model), name
        assert ("experts" in of_model) == ("top_k" in of_model) == ("expert_width" in of_model), name
        assert {"experts", "intermediate"} & set(of_model), name
    assert sizes["deepseek_v3"]["group_experts"] == 32
    assert sizes["gpt_oss"]["head_dim"] == 64


def test_a_size_that_a_model_does_not_use_is_not_asked_for(tmp_path: Path) -> None:
    """No dense layer: no width of one."""
    fields = {name: value for name, value in QWEN3_MOE.items() if name != "intermediate_size"}
    assert "intermediate" not in graph(tmp_path, fields).sizes


def test_fusions_and_numbers_of_rows_go_by_sizes_too(tmp_path: Path) -> None:
    text = (
        "fusions:\n  - {{name: fused, sizes: {{hidden: {hidden}}}, chain: [add, rms_norm], "
        "set: {{'add:output->rms_norm': fp32}}}}\n"
        "rules:\n  - {{op: rms_norm, sizes: {{hidden: {hidden}}}, rows: {{below: 3}}, set: {{normalized: fp32}}}}\n"
    )
    of = graph(tmp_path, LLAMA)
    node = next(node for node in of.nodes if node.op.name == "add")
    for hidden, holds in ((of.sizes["hidden"], True), (of.sizes["hidden"] + 1, False)):
        plan = bound(of, tmp_path, text.format(hidden=hidden))
        assert len(plan.phases) == 1 + holds, "what says nothing of a model cuts none of its phases"
        at = plan.at(StepSizes("forward", rows=2, longest=2, keys=2, queries=2))
        assert (bool(at.edges(node)), at.settings["norm", "normalized"].value == "fp32") == (holds, holds)


def test_two_rules_for_sizes_that_no_model_has_both_do_not_conflict(tmp_path: Path) -> None:
    rules = "rules:\n" + "".join(
        f"  - {{op: router, sizes: {{groups: {groups}}}, set: {{renormalize_order: {order}}}}}\n"
        for groups, order in ((1, "sequential"), (2, "fold_hi"))
    )
    of = graph(tmp_path, DEEPSEEK_V3, n_group=2, topk_group=1)
    router = next(node.name for node in of.nodes if node.op.name == "router")
    assert bound(of, tmp_path, rules).settings[router, "renormalize_order"].value == "fold_hi"


def test_sizes_are_told_with_a_rule() -> None:
    conditions = {s.sizes for s in statements("vllm") if s.attribute == "denominator"}
    assert "experts 16, 64, 128, 256" in conditions
