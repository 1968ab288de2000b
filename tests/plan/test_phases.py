"""Choices by phase: a plan knows its settings in each, a place is one choice in all, and mixtures keep to that."""

from __future__ import annotations

import math
import random
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from benchmarks.planted.checkpoints import FAMILIES
from benchmarks.written_out import draw
from moeparity.documents.checked import shipped
from moeparity.errors import MoeparityError, SpecError, Where
from moeparity.plan.bind import bind
from moeparity.plan.bound import Plan
from moeparity.plan.changed import with_settings
from moeparity.plan.config import Config
from moeparity.plan.engine_profile import load_profile, overrides, placement_rules
from moeparity.plan.evidence import evidence
from moeparity.plan.expand import expand
from moeparity.plan.graph import Graph
from moeparity.plan.region import regions
from moeparity.plan.schedule.cases import Case, Sizes, cut
from moeparity.plan.schedule.settings import ScheduleSettings
from moeparity.plan.schedule.steps import PHASES, Phase
from moeparity.plan.sides import Side, cases_of
from moeparity.plan.spec import reader
from moeparity.plan.spec.variant_schema import Impl
from moeparity.plan.toggles import Toggle, mixed, split, toggles
from tests.plan.configs import DEEPSEEK_V3, QWEN3_MOE, bound, graph

SERVED: Final[tuple[Phase, ...]] = ("prefill", "decode")
ALL: Final[tuple[Phase, ...]] = ("forward", "prefill", "decode")
ATTEND = "layers[1].attention.attend"
SPLIT_IN_DECODE = """rules:
  - {op: attention, set: {implementation: flash}}
  - op: attention
    phase: decode
    set: {splits: 4}
    evidence: {level: read, source: "a scheduler"}
    set_by: --splits 4
"""
FLASH = "rules:\n  - {op: attention, set: {implementation: flash}}\n"


@pytest.fixture
def qwen(tmp_path: Path) -> Graph:
    return graph(tmp_path, QWEN3_MOE, num_hidden_layers=3)


@pytest.fixture
def deepseek(tmp_path: Path) -> Graph:
    return graph(tmp_path, DEEPSEEK_V3)


def pair(of: Graph, folder: Path, reference: str, candidate: str, phases: tuple[Case, ...] = ALL) -> tuple[Side, Side]:
    plans = (
        bound(of, folder, rules, name=name, phases=phases)
        for rules, name in ((reference, "theirs"), (candidate, "mine"))
    )
    first, second = (Side(plan=plan, schedule=ScheduleSettings(batch=2)) for plan in plans)
    return first, second


def values(plan: Plan, place: tuple[str, str]) -> list[object]:
    """A setting in every phase."""
    return [plan.at_phase(phase).settings[place].value for phase in plan.phases]


def in_effect(plan: Plan) -> list[object]:
    """All that decides anything, phase by phase."""
    return [_in_effect(plan.at_phase(phase)) for phase in plan.phases]


def _in_effect(plan: Plan) -> dict[str, object]:
    replaced = plan.replaced()
    by_node = {n.name: (dict(plan.active(n)), plan.edges(n)) for n in plan.graph.nodes if n.name not in replaced}
    return {**by_node, "partials": dict(plan.partials), "replaced": {name: r.call for name, r in replaced.items()}}


# -- a plan --------------------------------------------------------------------------------------------------------


def test_a_rule_holds_in_its_phases(qwen: Graph, tmp_path: Path) -> None:
    plan = bound(qwen, tmp_path, SPLIT_IN_DECODE, phases=PHASES)
    assert values(plan, (ATTEND, "splits")) == [1, 1, 1, 4, 1]
    assert [plan.at_phase(phase) is plan for phase in PHASES] == [True, True, True, False, True]
    assert plan.distinct == (plan, plan.at_phase("decode"))


def test_phases_that_agree_are_one_plan(deepseek: Graph, qwen: Graph, tmp_path: Path) -> None:
    plan = bind(deepseek, load_profile("trtllm", Where(Path("x"))), "bf16", phases=PHASES)
    assert len(plan.distinct) == 3
    assert plan.at_phase("prefill") is plan
    assert plan.at_phase("decode") is plan.at_phase("verify")
    assert bound(qwen, tmp_path, FLASH, phases=PHASES).others == {}


def test_a_plan_says_nothing_of_a_phase_it_was_not_bound_for(qwen: Graph, tmp_path: Path) -> None:
    plan = bound(qwen, tmp_path, SPLIT_IN_DECODE)
    assert values(plan, (ATTEND, "splits")) == [1]
    with pytest.raises(ValueError, match="bound for forward, and is asked for decode"):
        plan.at_phase("decode")
    with pytest.raises(ValueError, match="asked for prefill"):
        with_settings(bound(qwen, tmp_path, FLASH, phases=SERVED), [(ATTEND, "splits")], plan)


def test_a_fusion_holds_in_its_phases(qwen: Graph, tmp_path: Path) -> None:
    fusion = (
        "fusions:\n  - {name: fused, phase: [decode], chain: [add, rms_norm], set: {'add:output->rms_norm': fp32}}\n"
    )
    plan = bound(qwen, tmp_path, fusion, phases=ALL)
    node = next(node for node in qwen.nodes if node.op.name == "add")
    assert [bool(plan.at_phase(phase).edges(node)) for phase in ALL] == [False, False, True]


def test_a_recipes_own_line_may_name_phases(qwen: Graph, tmp_path: Path) -> None:
    line = f'{{"{ATTEND}:kv_block@prefill, decode": 16, "layers[0].attention.attend:kv_block": 32}}'
    plan = bound(qwen, tmp_path, FLASH, choices=line, phases=PHASES)
    assert values(plan, (ATTEND, "kv_block")) == [64, 16, 64, 16, 64]
    assert values(plan, ("layers[0].attention.attend", "kv_block")) == [32] * 5
    with pytest.raises(SpecError, match=r"set for steps of prefill, decode, and the schedules here have none"):
        bound(qwen, tmp_path, FLASH, choices=line, phases=("forward", "verify"))


def test_two_rules_may_disagree_in_other_phases_only(qwen: Graph, tmp_path: Path) -> None:
    rule = "  - {{op: attention, phase: {phase}, set: {{scores: {value}}}}}\n"
    apart = "rules:\n" + rule.format(phase="prefill", value="fp32") + rule.format(phase="decode", value="bf16")
    assert values(bound(qwen, tmp_path, apart, phases=ALL), (ATTEND, "scores")) == ["model", "fp32", "bf16"]
    overlap = (
        "rules:\n" + rule.format(phase="[prefill, decode]", value="fp32") + rule.format(phase="decode", value="bf16")
    )
    with pytest.raises(SpecError, match="Narrow their phases"):
        bound(qwen, tmp_path, overlap, phases=ALL)
    assert bound(qwen, tmp_path, overlap, phases=("prefill",)), "no step of the other phase is ever run"


def test_what_an_op_refuses_in_one_phase_is_told_with_it(qwen: Graph, tmp_path: Path) -> None:
    rules = FLASH + "  - {op: attention, phase: decode, set: {splits: 2, splits_order: tree(0+1)}}\n"
    with pytest.raises(SpecError, match=r"mine.yaml:5 .*splits_order: .* So it is in decode\."):
        bound(qwen, tmp_path, rules, phases=ALL)
    assert bound(qwen, tmp_path, rules)


def test_partial_sums_are_alike_in_all_phases(qwen: Graph, tmp_path: Path) -> None:
    rules = "rules:\n  - {op: linear, phase: decode, set: {tensor: 2}}\n"
    with pytest.raises(SpecError, match=r"o_proj is whole in prefill and in 2 partial sums in decode"):
        bound(qwen, tmp_path, rules, phases=SERVED)
    assert bound(qwen, tmp_path, rules, phases=("decode",)), "where there is one phase, nothing reads another's sums"


# -- differences ---------------------------------------------------------------------------------------------------


def test_a_difference_in_one_phase_is_one_toggle(qwen: Graph, tmp_path: Path) -> None:
    reference, candidate = pair(qwen, tmp_path, FLASH, SPLIT_IN_DECODE)
    (toggle,) = toggles(reference, candidate)
    assert (toggle.name, toggle.reference, toggle.candidate) == ("op attention:splits", "1", "1 (decode: 4)")
    assert {member.phases for member in toggle.members} == {("decode",)}
    assert (toggle.reference_origin, toggle.candidate_set_by) == ("default of the op", "--splits 4 (mine)")
    assert evidence(toggle.members, reference.plan, candidate.plan) == ("unknown", "read")
    assert toggles(*pair(qwen, tmp_path, FLASH, SPLIT_IN_DECODE, phases=("forward", "prefill"))) == []


def test_a_value_that_differs_by_phase_on_both_sides_is_one_choice(deepseek: Graph, tmp_path: Path) -> None:
    expanded = "rules:\n  - {op: mla, phase: [forward, prefill], set: {projection: expanded, kv_b: fp32}}\n"
    swapped = expanded + "  - {op: mla, phase: [decode], set: {projection: absorbed}}\n"
    candidate_rules = "rules:\n  - {op: mla, phase: [forward], set: {projection: absorbed}}\n"
    rows = {t.name: (t.reference, t.candidate) for t in toggles(*pair(deepseek, tmp_path, swapped, candidate_rules))}
    assert rows["op mla:projection"] == ("expanded (decode: absorbed)", "absorbed (prefill, decode: expanded)")
    assert rows["op mla:kv_b"] == ("fp32 (decode: model (bf16))", "model (bf16)")


def test_a_mixture_moves_a_place_in_all_phases(deepseek: Graph) -> None:
    where = Where(Path("x"))
    reference, candidate = (
        Side(plan=bind(deepseek, load_profile(name, where), "bf16", phases=ALL), schedule=ScheduleSettings(batch=1))
        for name in ("hf-eager", "trtllm")
    )
    bundles = toggles(reference, candidate)
    projection = next(t for t in bundles if t.name == "op mla:projection")
    assert (projection.reference, projection.candidate) == (
        "expanded (decode: context)",
        "expanded (decode: absorbed)",
    )
    place = ("layers[0].attention.attend", "projection")
    assert values(mixed(reference, [projection], candidate).plan, place) == ["expanded", "expanded", "absorbed"]
    assert values(mixed(candidate, [projection], reference).plan, place) == ["expanded", "expanded", "context"]
    assert in_effect(mixed(candidate, bundles, reference).plan) == in_effect(reference.plan)
    assert in_effect(mixed(reference, bundles, candidate).plan) == in_effect(candidate.plan)


def test_what_nobody_set_goes_along_in_the_phases_that_wake_it(qwen: Graph, tmp_path: Path) -> None:
    """Each side has tiles of its own in one phase, and none that anybody set in the other."""
    tiles = "rules:\n  - {{op: attention, phase: {phase}, set: {{implementation: flash, kv_block: {keys}}}}}\n"
    reference_rules, candidate_rules = tiles.format(phase="prefill", keys=16), tiles.format(phase="decode", keys=32)
    reference, candidate = pair(qwen, tmp_path, reference_rules, candidate_rules, SERVED)
    (toggle,) = toggles(reference, candidate)
    assert (toggle.reference, toggle.candidate) == ("flash (decode: eager)", "eager (decode: flash)")
    assert values(mixed(reference, [toggle], candidate).plan, (ATTEND, "kv_block"))[1] == 32
    assert values(mixed(candidate, [toggle], reference).plan, (ATTEND, "kv_block"))[0] == 16


def test_a_users_function_stands_in_every_phase(qwen: Graph, tmp_path: Path) -> None:
    where = Where(tmp_path / "recipe.yaml")
    region = regions(qwen, [Impl(nodes=ATTEND, call="kernels:attend")], where)
    profile = load_profile("vllm", where)
    plans = (bind(qwen, profile, "bf16", regions=r, phases=ALL) for r in ((), region))
    reference, candidate = (Side(plan=plan, schedule=ScheduleSettings(batch=1)) for plan in plans)
    (toggle,) = toggles(reference, candidate)
    assert (toggle.candidate, toggle.kind, split(toggle)) == ("kernels:attend", "implementation", [])
    moved = mixed(reference, [toggle], candidate).plan
    assert all(moved.at_phase(phase).region(ATTEND) is region[0] for phase in ALL)


def test_a_dtype_is_one_in_all_phases(qwen: Graph, tmp_path: Path) -> None:
    half, full = (bound(qwen, tmp_path, "rules: []\n", dtype=dtype, phases=ALL) for dtype in ("bf16", "fp32"))
    (toggle,) = toggles(
        Side(plan=half, schedule=ScheduleSettings(batch=1)), Side(plan=full, schedule=ScheduleSettings(batch=1))
    )
    assert (toggle.name, toggle.reference, toggle.candidate) == ("dtype", "bf16", "fp32")
    assert not any("@" in part.name for part in split(toggle))


# -- toggles taken apart -------------------------------------------------------------------------------------------


def test_a_toggle_is_taken_apart_by_phase(qwen: Graph, tmp_path: Path) -> None:
    flash = "rules:\n  - {op: attention, phase: [prefill, decode], set: {implementation: flash}}\n"
    reference, candidate = pair(qwen, tmp_path, "rules: []\n", flash)
    (toggle,) = toggles(reference, candidate)
    parts = split(toggle)
    assert [(p.name, p.reference, p.candidate, p.parent) for p in parts] == [
        (f"op attention:implementation@{phase}", "eager", "flash", "op attention:implementation") for phase in SERVED
    ]
    place = (ATTEND, "implementation")
    assert values(mixed(reference, parts[:1], candidate).plan, place) == ["eager", "flash", "eager"]
    assert values(mixed(candidate, parts[:1], reference).plan, place) == ["eager", "eager", "flash"]
    assert in_effect(mixed(reference, parts, candidate).plan) == in_effect(candidate.plan)
    layers = split(parts[1])
    assert [part.name for part in layers] == [
        "layers[0:2].attention.attend:implementation@decode",
        "layers[2].attention.attend:implementation@decode",
    ]
    assert values(mixed(reference, layers[:1], candidate).plan, place) == ["eager", "eager", "flash"]


def test_attributes_come_before_phases(qwen: Graph, tmp_path: Path) -> None:
    wide = "rules:\n  - {op: attention, phase: [prefill, decode], set: {scores: fp32, probabilities: fp32}}\n"
    plans = (
        bound(qwen, tmp_path, rules, name=name, phases=SERVED) for rules, name in (("rules: []\n", "a"), (wide, "b"))
    )
    reference, candidate = (Side(plan=plan, schedule=ScheduleSettings(batch=1)) for plan in plans)
    (toggle,) = toggles(reference, candidate, by="rule")
    names = [[part.name for part in split(half)] for half in split(toggle)]
    scores, probabilities = (f"op attention / attention:{name}" for name in ("scores", "probabilities"))
    assert names == [[f"{name}@{phase}" for phase in SERVED] for name in (scores, probabilities)]


# -- the class -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> list[Graph]:
    fields = ({**FAMILIES["qwen3_moe"], "num_hidden_layers": 2}, DEEPSEEK_V3)
    return [graph(tmp_path_factory.mktemp("graph"), config) for config in fields]


def drawn(folder: Path, of: Graph, seed: int) -> tuple[Side, Side] | None:
    """Both sides of a drawn recipe whose lines hold in drawn phases; None where an op refuses one of them."""
    path = draw.write(folder, folder, folder / "none", of, seed)
    recipe, where = reader.read_recipe(path), Where(path)
    chance = random.Random(seed)  # noqa: S311
    variants = (recipe.reference, recipe.candidate)
    endings = ("", "@prefill", "@decode", "@decode[rows 3:]", "@prefill[rows :7]")
    rules = [overrides({k + chance.choice(endings): v for k, v in variant.set.items()}, where) for variant in variants]
    profiles = [load_profile(variant.profile, where) for variant in variants]
    cases = cases_of(of, "bf16", SERVED, variants, profiles, where, rules)
    sides = []
    for variant, profile, layers in zip(variants, profiles, rules, strict=True):
        with suppress(MoeparityError):
            plan = bind(of, profile, "bf16", layers, placement=placement_rules(variant.placement, where), phases=cases)
            sides.append(Side(plan=plan, schedule=ScheduleSettings(batch=2)))
    return (sides[0], sides[1]) if len(sides) == 2 else None


def test_a_mixture_is_one_plan_whichever_side_it_is_made_of(tmp_path: Path, graphs: list[Graph]) -> None:
    compared = 0
    for seed in range(500, 516):
        sides = drawn(tmp_path, graphs[seed % len(graphs)], seed)
        if sides is None:
            continue
        reference, candidate = sides
        chance = random.Random(seed)  # noqa: S311
        pieces = [part for toggle in toggles(reference, candidate) for part in _apart(toggle, chance)]
        assert {p.partition("[")[0] for side in sides for p in side.plan.phases} == set(SERVED)
        for _ in range(3):
            members = [piece for piece in pieces if chance.random() < 0.5]
            rest = [piece for piece in pieces if piece not in members]
            with suppress(SpecError):
                ours, theirs = mixed(reference, members, candidate), mixed(candidate, rest, reference)
                assert in_effect(ours.plan) == in_effect(theirs.plan), (seed, [piece.name for piece in members])
                compared += 1
        assert in_effect(mixed(reference, pieces, candidate).plan) == in_effect(candidate.plan), seed
    assert compared >= 12


def _apart(toggle: Toggle, chance: random.Random) -> list[Toggle]:
    return (split(toggle) if chance.random() < 0.5 else []) or [toggle]


@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3"])
def test_every_shipped_profile_binds_in_every_phase(name: str) -> None:
    of = expand(Config(shipped("configs", "json")[name]))
    for profile in shipped("profiles"):
        plan = bind(of, load_profile(profile, Where(Path(profile))), "bf16", phases=PHASES)
        assert {case.partition("[")[0] for case in plan.phases} == set(PHASES)


def test_edges_of_one_node_in_some_phase_have_names_that_tell_them_apart(qwen: Graph, tmp_path: Path) -> None:
    edges = 'rules:\n  - {nodes: "layers[1].attention.norm", phase: decode, set: {"output->linear": fp32}}\n'
    (toggle,) = toggles(*pair(qwen, tmp_path, "", edges))
    assert [part.name for part in split(toggle)] == [
        f"layers[1].attention.norm:output->layers[1].attention.{name}_proj" for name in "qkv"
    ]


# -- by numbers ----------------------------------------------------------------------------------------------------

BY_NUMBERS = (
    FLASH
    + """  - op: attention
    phase: [decode, verify]
    keys: {from: 1024}
    set: {splits: 4}
    evidence: {level: read, source: "a scheduler"}
    set_by: --splits 4
  - {op: rms_norm, rows: {from: 2, below: 65}, set: {normalized: fp32}}
"""
)
SPLITS = (ATTEND, "splits")


def test_a_rule_holds_where_its_numbers_do(qwen: Graph, tmp_path: Path) -> None:
    plan = bound(qwen, tmp_path, BY_NUMBERS, phases=SERVED)
    assert [case for case in plan.phases if case.startswith("prefill")] == [
        "prefill[rows :2]",
        "prefill[rows 2:65]",
        "prefill[rows 65:]",
    ]
    for keys, splits in ((1023, 1), (1024, 4), (5000, 4)):
        assert plan.at(Sizes("decode", rows=9, longest=keys, keys=keys, queries=1)).settings[SPLITS].value == splits
        assert plan.at(Sizes("prefill", rows=9, longest=keys, keys=keys, queries=1)).settings[SPLITS].value == 1
    norm = ("norm", "normalized")
    normalized = [
        plan.at(Sizes("prefill", rows=n, longest=n, keys=n, queries=n)).settings[norm].value for n in (1, 2, 64, 65)
    ]
    assert normalized == ["model", "fp32", "fp32", "model"]


def test_a_difference_by_numbers_is_one_choice_with_parts_that_a_recipe_can_name(qwen: Graph, tmp_path: Path) -> None:
    cases = cut(SERVED, ["decode[keys 1024:]", *(f"{phase}[rows 2:65]" for phase in SERVED)])
    ours, theirs = pair(qwen, tmp_path, FLASH, BY_NUMBERS, phases=cases)
    splits = next(toggle for toggle in toggles(ours, theirs) if toggle.name == "op attention:splits")
    assert (splits.reference, splits.candidate) == ("1", "1 (decode[keys 1024:]: 4)")
    assert evidence(splits.members, ours.plan, theirs.plan) == ("unknown", "read")
    (norm,) = [toggle for toggle in toggles(ours, theirs) if toggle.name == "op rms_norm:normalized"]
    parts = split(norm)
    assert [part.name.partition("@")[2] for part in parts] == ["prefill[rows 2:65]", "decode[rows 2:65]"]
    line = f'{{"{ATTEND}:splits@decode[keys 1024:]": 4}}'
    named_part = bound(qwen, tmp_path, FLASH, choices=line, phases=cases)
    assert values(named_part, SPLITS) == values(theirs.plan, SPLITS)


def test_keys_are_attentions_own(qwen: Graph, tmp_path: Path) -> None:
    rules = "rules:\n  - {op: linear, keys: {from: 5}, set: {output: fp32}}\n"
    with pytest.raises(SpecError, match=r"op linear goes by longest, keys, queries, .* sees rows only\. Say `rows`"):
        bound(qwen, tmp_path, rules, phases=SERVED)


def test_a_fusion_by_rows(qwen: Graph, tmp_path: Path) -> None:
    fusion = (
        "fusions:\n  - {name: fused, rows: {below: 3}, chain: [add, rms_norm], set: {'add:output->rms_norm': fp32}}\n"
    )
    plan = bound(qwen, tmp_path, fusion, phases=("decode",))
    node = next(node for node in qwen.nodes if node.op.name == "add")
    edges = [bool(plan.at(Sizes("decode", rows=n, longest=9, keys=9, queries=1)).edges(node)) for n in (2, 3)]
    assert edges == [True, False]


def test_so_many_cases_that_none_could_be_read_are_refused(qwen: Graph, tmp_path: Path) -> None:
    rule = "  - {{op: attention, rows: {{from: {n}}}, keys: {{from: {n}}}, set: {{kv_block: 16}}}}\n"
    rules = "rules:\n" + "".join(rule.format(n=n) for n in range(1, 12))
    with pytest.raises(SpecError, match=r"mine.yaml:4: the rules here tell 288 cases apart .* at most 256"):
        bound(qwen, tmp_path, rules, phases=SERVED)


def test_triton_cuts_the_keys_of_all_sequences_by_the_longest_of_a_step() -> None:
    """vLLM 0.33.0, triton_mla.py _compute_num_kv_splits: min(next_power_of_2(max(1, longest // 512)), 2 * 132)."""
    of = expand(Config(shipped("configs", "json")["deepseek_v3"]))
    plan = bind(of, load_profile("vllm-triton-mla", Where(Path("x"))), "bf16", phases=("prefill", "decode"))
    place = ("layers[0].attention.attend", "splits")
    for longest in (1, 1023, 1024, 1535, 1536, 4607, 4608, 16896, 131583, 131584, 10**6):
        splits = min(2 ** math.ceil(math.log2(max(1, longest // 512))), 264)
        at = plan.at(Sizes("decode", rows=3, longest=longest, keys=1, queries=1))
        assert at.settings[place].value == splits, longest
    assert plan.at(Sizes("prefill", rows=9000, longest=9000, keys=9000, queries=9000)).settings[place].value == 1
