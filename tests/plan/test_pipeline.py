"""Stages of a pipeline: how layers are divided, what a border leaves of fused kernels, and which toggle that is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity.engine.forward import forward
from moeparity.errors import Where
from moeparity.inputs.model import Model, open_model
from moeparity.numerics.bits import same_bits
from moeparity.ops.attribute import EDGE, STORED, Value
from moeparity.plan.bind import bind
from moeparity.plan.borders import closing, stage_of
from moeparity.plan.bound import Plan
from moeparity.plan.engine_profile import load_profile, overrides, placement_rules
from moeparity.plan.graph import Graph
from moeparity.plan.schedule.settings import ScheduleSettings
from moeparity.plan.setting import Place
from moeparity.plan.sides import Side
from moeparity.plan.spec.variant_schema import Placement
from moeparity.plan.stages import Division, Pipeline
from moeparity.plan.toggles import mixed, split, swap, toggles
from tests.opened import opened

WHERE = Where(Path("recipe.yaml"))
CHECKPOINT = "checkpoints/quickstart"
IDS = torch.randint(0, 250, (3, 7), generator=torch.Generator().manual_seed(1))
TWO = {"pipeline": 2}
MODELS = (
    *("qwen3_moe", "qwen2_moe", "deepseek_v3", "glm4_moe", "gpt_oss", "olmoe", "mixtral", "llama", "qwen2", "qwen3"),
)
FUSED, PLAIN = "flashinfer-allreduce-norm", "hf-default"


@pytest.fixture(scope="module")
def model() -> Model:
    return open_model(CHECKPOINT, device="cpu", residency="resident")


def plan(of: Graph, profile: str, placement: Mapping[str, Any], settings: Mapping[str, Value] | None = None) -> Plan:
    rules = placement_rules(Placement.model_validate(dict(placement)), WHERE)
    return bind(of, load_profile(profile, WHERE), "bf16", overrides(settings or {}, WHERE), placement=rules)


def side(*args: Any) -> Side:
    return Side(plan=plan(*args), schedule=ScheduleSettings(batch=2))


def values(of: Plan) -> dict[Place, Value]:
    """What takes effect at every place."""
    nodes = {node.name: node for node in of.graph.nodes}
    active = {(name, choice): value for name, node in nodes.items() for choice, value in of.active(node).items()}
    sites = {(name, choice): s.value for (name, choice), s in of.settings.items() if EDGE in choice}
    return active | sites


@pytest.mark.parametrize(
    ("stages", "layers", "sizes"),
    [
        # get_pp_indices of vLLM 0.33.0 and sglang 0.5.23 as run (tests/engines/test_launch_rules.py runs it anew).
        ("vllm", 61, {2: (31, 30), 3: (20, 21, 20), 4: (15, 15, 16, 15), 7: (8, 9, 9, 9, 9, 9, 8)}),
        ("sglang", 61, {2: (30, 31), 3: (20, 20, 21), 4: (15, 15, 15, 16), 7: (8, 8, 9, 9, 9, 9, 9)}),
        (None, 12, {2: (6, 6), 3: (4, 4, 4), 12: (1,) * 12}),
        ((3, 1, 2), 6, {3: (3, 1, 2)}),
    ],
)
def test_layers_are_divided_as_engines_do(
    stages: tuple[int, ...] | Division | None, layers: int, sizes: dict[int, tuple[int, ...]]
) -> None:
    for count, expected in sizes.items():
        pipeline = Pipeline(count=count, stages=stages)
        assert pipeline.sizes(layers) == expected
        assert pipeline.last_layers(layers) == tuple(sum(expected[: i + 1]) - 1 for i in range(count - 1))


@pytest.mark.parametrize("name", MODELS)
def test_each_layer_is_closed_by_one_sum(name: str, request: pytest.FixtureRequest) -> None:
    of = opened(request.getfixturevalue(name)).graph
    assert [node.layer for node in closing(of)] == list(range(of.layers))
    assert {node.op.name for node in closing(of)} == {"add"}


def test_the_stage_of_each_node(model: Model) -> None:
    sums = stage_of(model.graph, plan(model.graph, PLAIN, {"pipeline": 3, "stages": "vllm"}).settings)
    apart = stage_of(model.graph, plan(model.graph, "vllm", {"pipeline": 3, "stages": "vllm"}).settings)
    assert [sums[f"layers[{i}].moe.residual"] for i in range(4)] == [0, 1, 1, 2]
    # Two values are sent, and the next stage adds them.
    assert [apart[f"layers[{i}].moe.residual"] for i in range(4)] == [1, 1, 2, 2]
    assert [apart[f"layers[{i}].moe.reduce"] for i in range(4)] == [0, 1, 1, 2]
    assert (sums["embed"], sums["rotary"], sums["norm"], sums["lm_head"]) == (0, 0, 2, 2)


@pytest.mark.parametrize(
    ("profile", "hands_on", "fused"),
    [
        # The sum is sent: nothing of the chain is fused over the border. Apart: all but the all-reduce.
        ("vllm", "sum", {"add:output->rms_norm": "fp32"}),
        ("vllm", "apart", {}),
        ("flashinfer-add-norm", "sum", {"add:output->rms_norm": "fp32", "rms_norm:order": "flashinfer.rms_norm"}),
        ("flashinfer-add-norm", "apart", {}),
        (FUSED, "apart", {"all_reduce:collective": "flashinfer.one_shot", "rms_norm:normalized": "fp32"}),
    ],
)
def test_no_fused_kernel_reaches_across_a_border(
    model: Model, profile: str, hands_on: str, fused: dict[str, Value]
) -> None:
    tensor = {"tensor": 2}
    sets: dict[str, Value] = {"**.moe.residual:hands_on": hands_on}
    whole, cut = plan(model.graph, profile, tensor), plan(model.graph, profile, TWO | tensor, sets)
    differing = {place for place, value in values(whole).items() if values(cut).get(place) != value}
    differing = {(node, name) for node, name in differing if name not in ("stage", "hands_on")}
    nodes = {"layers[1].moe.residual", "layers[1].moe.reduce", "layers[2].attention.norm"}
    assert {node for node, _ in differing} <= nodes
    names = {(node.rpartition(".")[2].replace("residual", "add"), name.partition("->")[0]) for node, name in differing}
    expected = {(key.partition(":")[0], key.partition(":")[2].partition("->")[0]) for key in fused}
    op_of = {"add": "add", "reduce": "all_reduce", "norm": "rms_norm"}
    assert {(op_of[node], name) for node, name in names} >= expected
    assert bool(names) == bool(fused)
    if hands_on == "sum":
        edges = [place for place in values(cut) if place[0] == "layers[1].moe.residual" and "->" in place[1]]
        assert {values(cut)[place] for place in edges} == {STORED}
    # Behind the border things are fused as before.
    assert values(cut)["layers[3].attention.norm", "order"] == values(whole)["layers[3].attention.norm", "order"]


def test_what_is_unfused_has_the_bits_of_what_stands_beneath(model: Model) -> None:
    """By hand: the collective and the norm at the border as the profile beneath has them."""
    unfused: dict[str, Value] = {
        "layers[1].moe.reduce:collective": "gloo.all_reduce",
        "layers[2].attention.norm:normalized": "model",
        "layers[2].attention.norm:order": "native",
    }
    placement: dict[str, Any] = {"tensor": 4}
    loop: dict[str, Value] = {"**.experts:implementation": "loop"}
    by_hand = forward(model, IDS, profile=FUSED, placement=placement, settings=loop | unfused)["logits"]
    piped = forward(model, IDS, profile=FUSED, placement=placement | TWO, settings=loop)["logits"]
    fused = forward(model, IDS, profile=FUSED, placement=placement, settings=loop)["logits"]
    assert same_bits(piped, by_hand)
    assert not same_bits(piped, fused)


@pytest.mark.parametrize("apart", [False, True])
def test_a_mixture_is_what_somebody_could_write(model: Model, *, apart: bool) -> None:
    """One choice alone, where the other decides what it comes to: each mixture is bound anew from what it says."""
    sets: dict[str, Value] = {"**.residual:hands_on": "apart"} if apart else {}
    tensor = {"tensor": 2}
    profiles, placements = (PLAIN, FUSED), (tensor, tensor | TWO)
    for first, second in ((0, 1), (1, 0)):
        # Profile and pipeline of one side each, and of the same.
        for turned in (False, True):
            reference = side(model.graph, profiles[first], placements[first ^ turned], sets)
            candidate = side(model.graph, profiles[second], placements[second ^ turned], sets)
            switches = toggles(reference, candidate)
            pipeline = [toggle for toggle in switches if toggle.name == "placement pipeline"]
            rest = [toggle for toggle in switches if toggle.name != "placement pipeline"]
            assert len(pipeline) == 1
            assert rest
            piped = mixed(reference, pipeline, candidate)
            rest_mixed = mixed(reference, rest, candidate)
            assert values(piped.plan) == values(plan(model.graph, profiles[first], placements[second ^ turned], sets))
            assert values(rest_mixed.plan) == values(
                plan(model.graph, profiles[second], placements[first ^ turned], sets)
            )
            all_mixed = mixed(reference, switches, candidate)
            assert values(all_mixed.plan) == values(candidate.plan)


def test_the_toggle_has_the_nodes_at_which_it_shows(model: Model) -> None:
    reference, candidate = (side(model.graph, FUSED, {"tensor": 2} | more) for more in ({}, TWO))
    (toggle,) = toggles(reference, candidate)
    assert (toggle.name, toggle.kind, toggle.reference, toggle.candidate) == (
        *("placement pipeline", "placement", "goes_on", "ends"),
    )
    assert toggle.nodes == ("layers[1].moe.reduce", "layers[1].moe.residual", "layers[2].attention.norm")
    shown = {(m.node.name, m.attribute): (m.reference, m.candidate) for m in toggle.members}
    assert shown["layers[1].moe.reduce", "collective"] == ("flashinfer.one_shot", "gloo.all_reduce")
    assert shown["layers[1].moe.residual", "stage"] == ("goes_on", "ends")
    assert all(m.kind == "placement" for m in toggle.members)
    assert all(m.places == (("layers[1].moe.residual", "stage"),) for m in toggle.members)
    assert split(toggle) == []
    assert swap("layers[2]", ["layers[2].attention.norm"], reference, candidate) is None


def test_several_borders_are_taken_apart_with_what_follows(model: Model) -> None:
    reference, candidate = (side(model.graph, FUSED, {"tensor": 2} | more) for more in ({}, {"pipeline": 4}))
    (toggle,) = toggles(reference, candidate)
    halves = split(toggle)
    assert [sum(m.attribute == "stage" for m in half.members) for half in halves] == [2, 1]
    assert set(halves[0].nodes) | set(halves[1].nodes) == set(toggle.nodes)
    assert halves[1].nodes == ("layers[2].moe.reduce", "layers[2].moe.residual", "layers[3].attention.norm")


def test_what_is_sent_apart_against_the_sum_is_a_toggle_of_its_own(model: Model) -> None:
    reference, candidate = (
        side(model.graph, "flashinfer-add-norm", TWO, {"**.moe.residual:hands_on": hands_on})
        for hands_on in ("apart", "sum")
    )
    (toggle,) = toggles(reference, candidate)
    assert (toggle.name, toggle.reference, toggle.candidate) == ("**.moe.residual:hands_on", "apart", "sum")
    assert "layers[2].attention.norm" in toggle.nodes
    assert values(mixed(reference, [toggle], candidate).plan) == values(candidate.plan)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("hands_on", ["sum", "apart"])
def test_what_is_sent_is_rounded_where_a_border_says_so(model: Model, dtype: str, hands_on: str) -> None:
    """Against a forward by hand: what crosses, rounded and put back, and the sum of that."""
    settings: dict[str, Value] = {
        "**.residual:output": "fp32",
        "**.moe.residual:hands_on": hands_on,
        "**.moe.residual:border": dtype,
    }
    save = ["layers[1].attention.residual", "layers[1].moe.reduce", "layers[1].moe.residual"]
    saved = forward(model, IDS, profile="hf-default", placement=TWO, settings=settings, save=save)
    x, added, total = (saved[name.replace("[1]", ".1")] for name in save)
    wanted = torch.float32 if dtype == "fp32" else torch.bfloat16
    if hands_on == "apart":
        expected = x.to(wanted).to(x.dtype) + added.to(wanted).to(added.dtype).float()
    else:
        expected = (x + added.float()).to(wanted).float()
    assert total.dtype == torch.float32
    assert same_bits(total, expected)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("hands_on", ["sum", "apart"])
def test_where_nothing_crosses_no_bit_changes(name: str, hands_on: str, request: pytest.FixtureRequest) -> None:
    small = opened(request.getfixturevalue(name))
    ids = IDS % small.graph.config["vocab_size"]
    stages: dict[str, Any] = {"pipeline": min(2, small.graph.layers), "stages": "vllm"}
    settings: dict[str, Value] = {"**.residual:hands_on": hands_on}
    for schedule in (None, {"decode": {"from": 3}}):
        alone = forward(small, ids, profile="hf-default", settings=settings, schedule=schedule)
        piped = forward(small, ids, profile="hf-default", settings=settings, schedule=schedule, placement=stages)
        assert same_bits(alone["logits"], piped["logits"])
