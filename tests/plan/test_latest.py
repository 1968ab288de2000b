"""What is kept of graphs, profiles and their plans: the same for the same files, and never what a file said before."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from moeparity.documents.checked import shipped
from moeparity.errors import CheckpointError, SpecError, Where
from moeparity.ops.attribute import Value
from moeparity.plan.bind import bind
from moeparity.plan.bound import Plan
from moeparity.plan.config import Config
from moeparity.plan.engine_profile import Profile, load_profile, overrides, placement_rules
from moeparity.plan.expand import expand
from moeparity.plan.faults.stated import stated
from moeparity.plan.graph import Graph, Node
from moeparity.plan.latest import Latest
from moeparity.plan.schedule.cases import Case
from moeparity.plan.spec.variant_schema import Placement, StatedFault
from moeparity.profiles.compare import architectures
from tests.plan.configs import DEEPSEEK_V3, QWEN3_MOE, graph

HERE = Where(Path(__file__))
PROFILE = "kind: profile\nname: own\nrules:\n  - {op: rms_norm, set: {normalized: %s}}\n"


def test_what_was_made_of_the_same_things_is_kept() -> None:
    latest: Latest[list[int]] = Latest(2)
    thing, equal = [1], [1]
    first = latest.of((thing,), "a", list)
    assert latest.of((thing,), "a", list) is first
    assert latest.of((equal,), "a", list) is not first
    # The third call drops the first.
    assert latest.of((thing,), "b", list) is not first
    assert latest.of((thing,), "a", list) is not first


def test_what_was_asked_for_again_is_kept_longer() -> None:
    latest: Latest[list[int]] = Latest(2)
    first = latest.of((), "a", list)
    second = latest.of((), "b", list)
    assert latest.of((), "a", list) is first
    # The third drops the one that was asked for longest ago, which is not the oldest.
    latest.of((), "c", list)
    assert latest.of((), "a", list) is first
    assert latest.of((), "b", list) is not second


def test_what_was_refused_is_asked_again() -> None:
    latest: Latest[int] = Latest(2)
    with pytest.raises(ZeroDivisionError):
        latest.of((), "a", lambda: 1 // 0)
    assert latest.of((), "a", lambda: 3) == 3


def test_nothing_takes_the_place_of_what_is_gone() -> None:
    """An id is given again once its object is gone, so what is kept holds its objects."""
    latest: Latest[int] = Latest(1000)
    assert [latest.of(([number],), "a", partial(int, number)) for number in range(500)] == [*range(500)]


def test_equal_files_are_one_graph_and_a_changed_one_is_another(tmp_path: Path) -> None:
    first = graph(tmp_path, QWEN3_MOE)
    assert graph(tmp_path, QWEN3_MOE) is first
    larger = graph(tmp_path, QWEN3_MOE, num_hidden_layers=3)
    assert larger.layers == 3
    assert graph(tmp_path, QWEN3_MOE) is first

    own_file = tmp_path / "own.yaml"
    text = first.path.read_text("utf-8")
    own_file.write_text(text, "utf-8")
    config = Config(tmp_path / "config.json")
    copied = expand(config, own_file)
    assert copied.path == own_file
    assert expand(config, own_file) is copied
    own_file.write_text(f"# a comment\n{text}", "utf-8")
    moved = expand(config, own_file)
    before, after = (of.nodes[0].where.line for of in (copied, moved))
    assert before is not None
    assert after == before + 1


def test_a_config_that_does_not_fit_is_refused_each_time(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_MOE | {"num_experts_per_tok": 99}), "utf-8")
    for _ in range(2):
        with pytest.raises(CheckpointError, match="expected at most num_experts"):
            expand(Config(tmp_path / "config.json"))


def test_a_profile_that_changed_on_disk_is_read_anew(tmp_path: Path) -> None:
    of, path = graph(tmp_path, QWEN3_MOE), tmp_path / "own.yaml"
    norm = next(node.name for node in of.nodes if node.op.name == "rms_norm")

    def normalized() -> Value:
        plan = bind(of, load_profile("own.yaml", Where(tmp_path / "recipe.yaml")), "bf16")
        return plan.settings[norm, "normalized"].value

    for value in ("fp32", "bf16", "fp32"):
        path.write_text(PROFILE % value, "utf-8")
        assert normalized() == value
    path.write_text(PROFILE % "fp33", "utf-8")
    with pytest.raises(SpecError, match="normalized is 'fp33'"):
        normalized()


def test_the_same_profile_is_one_plan_until_something_is_set(tmp_path: Path) -> None:
    of, profile = graph(tmp_path, QWEN3_MOE), load_profile("hf-eager", HERE)
    plan = bind(of, profile, "bf16")
    assert bind(of, profile, "bf16") is plan
    assert bind(of, profile, "fp32").settings != plan.settings
    changed = bind(of, profile, "bf16", overrides({"lm_head:output": "fp32"}, HERE))
    assert changed.settings["lm_head", "output"].value == "fp32"
    assert plan.settings["lm_head", "output"].value != "fp32"
    # 1 and 1.0 are equal as keys, and are said otherwise.
    for eps in (1, 1.0, True):
        own_plan = bind(of, profile, "bf16", overrides({"layers[*].attention.norm:eps": eps}, HERE))
        assert type(own_plan.settings["layers[0].attention.norm", "eps"].value) is float


def _afresh(plan: Plan) -> Plan:
    """The plan with nothing taken over from one that is known."""
    others = {phase: _afresh(phase_plan) for phase, phase_plan in plan.others.items()}
    return Plan.bound(
        graph=plan.graph,
        dtype=plan.dtype,
        settings=plan.settings,
        regions=plan.regions,
        faults=plan.faults,
        dormant=plan.dormant,
        phases=plan.phases,
        others=others,
    )


@pytest.mark.parametrize("fields", [QWEN3_MOE, DEEPSEEK_V3], ids=["qwen3_moe", "deepseek_v3"])
def test_what_is_taken_over_from_a_profiles_own_plan_is_what_would_be_found(
    fields: dict[str, object], tmp_path: Path
) -> None:
    of = graph(tmp_path, fields)
    compared = 0
    cases: list[tuple[int, dict[str, Value]]] = [(2, {}), (1, {"lm_head:output": "fp32"}), (2, {"embed:tensor": 1})]
    for name in shipped("profiles"):
        profile = load_profile(name, HERE)
        for tensor, choices in cases:
            plan = _bound(of, profile, tensor, choices)
            if plan is None:
                continue
            afresh = _afresh(plan)
            assert (plan.choices_elsewhere, plan.partials) == (afresh.choices_elsewhere, afresh.partials), name
            assert [plan.active(node) for node in of.nodes] == [afresh.active(node) for node in of.nodes], name
            compared += 1
    assert compared > 20


def _bound(of: Graph, profile: Profile, tensor: int, choices: dict[str, Value]) -> Plan | None:
    ranks = placement_rules(Placement(tensor=tensor), HERE)
    try:
        return bind(of, profile, "bf16", overrides(choices, HERE), placement=ranks)
    except SpecError:
        # Some profiles' libraries take no two ranks.
        return None


def test_what_a_profile_sets_by_bytes_is_kept_for_one_message_alone() -> None:
    """The same profile, graph, dtype and cases: over other ranks its rules by bytes hold in other ones."""
    of, profile = expand(Config(architectures()["mixtral"])), load_profile("vllm-allreduce-norm", HERE)
    cases: tuple[Case, ...] = ("prefill",)
    for tensor in (4, 8):
        cases = _over_ranks(of, profile, tensor, cases).phases
    plans = {}
    for tensor in (4, 8, 1, 2, 8, 4):
        plans[tensor] = _over_ranks(of, profile, tensor, cases)
        afresh = _over_ranks(of, replace(profile), tensor, plans[tensor].phases)
        assert all(plans[tensor].at_phase(phase).settings == afresh.at_phase(phase).settings for phase in afresh.phases)
    assert plans[4].phases == plans[8].phases == cases
    norms = [[plans[ranks].at_phase(case).active(_norm(of)) for case in cases] for ranks in (4, 8)]
    assert norms[0] != norms[1]


def _over_ranks(of: Graph, profile: Profile, tensor: int, cases: tuple[Case, ...]) -> Plan:
    return bind(of, profile, "bf16", placement=placement_rules(Placement(tensor=tensor), HERE), phases=cases)


def _norm(of: Graph) -> Node:
    return next(node for node in of.nodes if node.name == "layers[0].moe.norm")


def test_a_fault_wakes_what_a_kept_profile_says(tmp_path: Path) -> None:
    of = graph(tmp_path, QWEN3_MOE)
    rules = "rules:\n  - {op: rope, set: {layout: pairs}}\n"
    (tmp_path / "own.yaml").write_text(f"kind: profile\nname: own\n{rules}", "utf-8")
    profile = load_profile("./own.yaml", Where(tmp_path / "recipe.yaml"))
    rope = next(node for node in of.nodes if node.op.name == "rope")
    faults = stated(of, [StatedFault(name="rope-interleaving", nodes=rope.name)], HERE)
    # What is kept is made without the fault, and asked for again behind it.
    plans = [bind(of, profile, "bf16", faults=planted) for planted in ((), faults, ())]
    assert [plan.choices(rope).get("layout") for plan in plans] == [None, "pairs", None]
    assert plans[0] is plans[2]
    changed = bind(of, profile, "bf16", overrides({"lm_head:output": "fp32"}, HERE), faults=faults)
    assert changed.active(rope) == _afresh(changed).active(rope) == plans[1].active(rope)
