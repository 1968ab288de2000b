"""Values that rest because of another choice: which are differences, which go along, and that mixtures have one truth.

A class of tests for the fault that a mixture was a plan nobody could write: recipes are drawn by seed, and every
mixture must be the same plan whichever side it is made of.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.planted.checkpoints import FAMILIES
from benchmarks.written_out import draw
from moeparity.errors import MoeparityError, SpecError, Where
from moeparity.ops.attribute import Value
from moeparity.ops.declaration import Op
from moeparity.ops.registry import OPS
from moeparity.plan.bind import bind
from moeparity.plan.bound import Plan
from moeparity.plan.changed import with_settings
from moeparity.plan.engine_profile import load_profile, overrides, placement_rules
from moeparity.plan.graph import Graph
from moeparity.plan.resting import going_along
from moeparity.plan.schedule.settings import ScheduleSettings
from moeparity.plan.schedule.steps import FORWARD
from moeparity.plan.sides import CANDIDATE, REFERENCE, Side, bound_side
from moeparity.plan.spec import reader
from moeparity.plan.spec.variant_schema import Placement
from moeparity.plan.toggles import Toggle, mixed, toggles
from tests.plan.configs import QWEN3_MOE, graph

Settings = dict[str, Value]
ROUTER = "layers[1].moe.router"
ATTEND = "layers[1].attention.attend"
FLASH: Settings = {f"{ATTEND}:implementation": "flash", f"{ATTEND}:kv_block": 16}


@pytest.fixture
def qwen(tmp_path: Path) -> Graph:
    return graph(tmp_path, QWEN3_MOE, num_hidden_layers=3)


def side(of: Graph, choices: Settings | None = None, tensor: int = 1, profile: str = "hf-eager") -> Side:
    where = Where(Path(__file__))
    ranks = placement_rules(Placement(tensor=tensor), where)
    plan = bind(of, load_profile(profile, where), "bf16", overrides(choices or {}, where), placement=ranks)
    return Side(plan=plan, schedule=ScheduleSettings(batch=2))


def resting(bundles: Sequence[Toggle]) -> dict[str, tuple[int, int, int]]:
    """By name: at how many nodes it differs, and at how many of them it rests in each side."""
    return {t.name: (len(t.nodes), t.resting(REFERENCE), t.resting(CANDIDATE)) for t in bundles}


def value(of: Side, address: str) -> object:
    """What is in effect at a node; None where the value rests."""
    node, _, name = address.rpartition(":")
    return of.plan.active(next(n for n in of.plan.graph.nodes if n.name == node)).get(name)


def test_a_resting_value_that_somebody_set_is_a_toggle_of_its_own(qwen: Graph) -> None:
    reference = side(qwen)
    hidden = {f"layers[0:2].moe.router:{name}": word for name, word in {"timing": "after_topk"}.items()}
    candidate = side(qwen, {**hidden, "layers[*].moe.router:renormalize_eps": 0.05})
    timing, eps = bundles = toggles(reference, candidate)
    assert resting(bundles) == {
        "layers[0:2].moe.router:timing": (2, 0, 0),
        "layers[*].moe.router:renormalize_eps": (3, 0, 2),
    }
    restored = mixed(candidate, [timing], reference)
    assert [value(restored, f"layers[{i}].moe.router:renormalize_eps") for i in range(3)] == [0.05] * 3
    alone = mixed(reference, [timing], candidate)
    assert [value(alone, f"layers[{i}].moe.router:renormalize_eps") for i in range(3)] == [None, None, 0.0]
    assert value(mixed(reference, [eps], candidate), "layers[0].moe.router:renormalize_eps") == 0.05


def test_a_resting_value_that_nobody_set_goes_along_with_what_wakes_it(qwen: Graph) -> None:
    reference, candidate = side(qwen), side(qwen, FLASH)
    (toggle,) = toggles(reference, candidate)
    assert (toggle.name, toggle.members[0].places) == (f"{ATTEND}:implementation", ((ATTEND, "implementation"),))
    assert going_along(reference.plan, candidate.plan) == {FORWARD: [(ATTEND, "kv_block")]}
    assert value(mixed(reference, [toggle], candidate), f"{ATTEND}:kv_block") == 16


def test_tiles_that_both_sides_set_are_a_choice_of_their_own(qwen: Graph) -> None:
    reference, candidate = side(qwen, {f"{ATTEND}:kv_block": 32}), side(qwen, FLASH)
    form, tiles = bundles = toggles(reference, candidate)
    assert resting(bundles) == {f"{ATTEND}:implementation": (1, 0, 0), f"{ATTEND}:kv_block": (1, 1, 0)}
    assert value(mixed(reference, [form], candidate), f"{ATTEND}:kv_block") == 32
    assert value(mixed(candidate, [tiles], reference), f"{ATTEND}:kv_block") == 32


def test_another_model_never_goes_along(qwen: Graph) -> None:
    """The reference's timing hides an eps that only the candidate sets: numerics must not take the blame for it."""
    reference = side(qwen, {f"{ROUTER}:timing": "after_topk"})
    candidate = side(qwen, {f"{ROUTER}:renormalize_eps": 0.05})
    timing, eps = bundles = toggles(reference, candidate)
    assert resting(bundles) == {f"{ROUTER}:timing": (1, 0, 0), f"{ROUTER}:renormalize_eps": (1, 1, 0)}
    assert value(mixed(reference, [timing], candidate), f"{ROUTER}:renormalize_eps") == 0.0
    assert value(mixed(candidate, [eps], reference), f"{ROUTER}:renormalize_eps") == 0.0


def test_a_name_stands_for_all_that_its_rule_sets(qwen: Graph) -> None:
    """Where a rule's value is a difference at one node, it is one at a node where the other side's rests, too."""
    blocks: Settings = {"layers[*].attention.attend:implementation": "flash", "layers[*].attention.attend:kv_block": 16}
    reference = side(qwen, {"layers[0].attention.attend:implementation": "flash"})
    candidate = side(qwen, blocks)
    assert going_along(reference.plan, candidate.plan) == {}
    assert resting(toggles(reference, candidate)) == {
        "layers[*].attention.attend:kv_block": (3, 2, 0),
        "layers[*].attention.attend:implementation": (2, 0, 0),
    }


def test_what_rests_on_both_sides_wakes_where_each_has_half_of_what_it_needs(qwen: Graph) -> None:
    half: Settings = {f"{ROUTER}:softmax": "native", f"{ATTEND}:implementation": "sdpa"}
    reference = side(qwen, {f"{ATTEND}:split_keys": 4, f"{ATTEND}:splits": "fixed", **half})
    candidate = side(qwen, {f"{ATTEND}:split_keys": 8, f"{ATTEND}:implementation": "flash"})
    assert f"{ATTEND}:split_keys" in resting(toggles(reference, candidate))
    never = side(qwen, {f"{ATTEND}:split_keys": 8})
    assert toggles(side(qwen, {f"{ATTEND}:split_keys": 4}), never) == [], "no mixture has a flash form"


def test_a_collective_that_nobody_set_goes_along_with_the_ranks(tmp_path: Path, qwen: Graph) -> None:
    (tmp_path / "bare.yaml").write_text("kind: profile\nname: bare\n", "utf-8")
    bare, chosen = str(tmp_path / "bare.yaml"), {"**.reduce:collective": "nccl.ring"}
    unset = toggles(side(qwen, profile=bare), side(qwen, {**chosen}, tensor=2, profile=bare))
    assert [toggle.name for toggle in unset] == ["placement tensor"]
    stated = toggles(side(qwen), side(qwen, {**chosen}, tensor=2))
    assert resting(stated)["**.reduce:collective"] == (6, 6, 0), "hf-eager states gloo"


def test_what_a_function_stands_in_place_of_rests(tmp_path: Path, qwen: Graph) -> None:
    text = """
kind: recipe
checkpoint: x
tokens: {file: x, sampled_from: candidate}
reference: {profile: hf-eager}
candidate:
  profile: hf-eager
  set: {"layers[1].moe.combine:accumulate": fp32}
  impl: [{nodes: ["layers[1].moe.experts", "layers[1].moe.combine"], call: "kernels:both"}]
gate: {metric: k3, below: 1}
"""
    (tmp_path / "recipe.yaml").write_text(text, "utf-8")
    recipe, where = reader.read_recipe(tmp_path / "recipe.yaml"), Where(tmp_path / "recipe.yaml")
    variants = (recipe.reference, recipe.candidate)
    reference, candidate = (bound_side(qwen, v, load_profile(v.profile, where), "bf16", where, 2) for v in variants)
    function, *_ = bundles = toggles(reference, candidate)
    assert list(resting(bundles).values()) == [(1, 0, 0), (1, 0, 1)]
    assert function.kind == "implementation"
    restored = mixed(candidate, [function], reference)
    assert value(restored, "layers[1].moe.combine:accumulate") == "fp32", "the candidate says so, without its function"
    assert restored.plan.replaced() == {}
    assert len(mixed(reference, [function], candidate).plan.replaced()) == 2


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_a_condition_says_what_the_attributes_it_names_ask_for(op: Op) -> None:
    """Or a value would take effect by the word of one that rests, and would go when that is taken over."""
    for attribute in op.attributes:
        parents = (op.attribute(name) for name in attribute.when)
        conditions = [item for parent in parents if parent is not None for item in parent.when.items()]
        assert all(set(attribute.when.get(name, ())) & set(words) for name, words in conditions), attribute.name
        assert all(set(attribute.when[name]) <= set(words) for name, words in conditions), attribute.name


# -- the class -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> list[Graph]:
    names = ("qwen3_moe", "glm4_moe", "qwen2_moe")
    return [graph(tmp_path_factory.mktemp(name), {**FAMILIES[name], "num_hidden_layers": 2}) for name in names]


def drawn(folder: Path, graphs: Sequence[Graph], seed: int) -> tuple[Side, Side] | None:
    """Both sides of a drawn recipe; None where an op refuses one of them."""
    of = graphs[seed % len(graphs)]
    path = draw.write(folder, folder, folder / "none", of, seed)
    recipe = reader.read_recipe(path)
    with suppress(MoeparityError):
        reference, candidate = (
            bound_side(of, variant, load_profile(variant.profile, Where(path)), "bf16", Where(path), draw.SEQUENCES)
            for variant in (recipe.reference, recipe.candidate)
        )
        return reference, candidate
    return None


def in_effect(of: Plan) -> dict[str, object]:
    """All that decides anything in a plan."""
    replaced = of.replaced()
    by_node = {n.name: (dict(of.active(n)), of.edges(n)) for n in of.graph.nodes if n.name not in replaced}
    dtypes = {f"{n.name}:dtype": of.dtype_of(n.name) for n in of.graph.nodes}
    return {**by_node, **dtypes, "partials": dict(of.partials), "replaced": {k: r.call for k, r in replaced.items()}}


@pytest.mark.parametrize("block", range(4))
def test_a_mixture_is_one_plan_whichever_side_it_is_made_of(tmp_path: Path, graphs: list[Graph], block: int) -> None:
    compared = 0
    for seed in range(100 + 10 * block, 110 + 10 * block):
        sides = drawn(tmp_path, graphs, seed)
        if sides is None:
            continue
        reference, candidate = sides
        bundles = toggles(reference, candidate)
        chance = random.Random(seed)  # noqa: S311
        for _ in range(4):
            members = [toggle for toggle in bundles if chance.random() < 0.5]
            rest = [toggle for toggle in bundles if toggle not in members]
            with suppress(SpecError):
                ours = mixed(reference, members, candidate)
                theirs = mixed(candidate, rest, reference)
                assert in_effect(ours.plan) == in_effect(theirs.plan), (seed, [t.name for t in members])
                assert ours.schedule == theirs.schedule
                compared += 1
    assert compared >= 8


@pytest.mark.parametrize("block", range(2))
def test_a_place_belongs_to_one_toggle(tmp_path: Path, graphs: list[Graph], block: int) -> None:
    for seed in range(200 + 10 * block, 210 + 10 * block):
        for reference, candidate in filter(None, [drawn(tmp_path, graphs, seed)]):
            places = [p for t in toggles(reference, candidate) for m in t.members for p in m.places]
            both_ways = ((reference.plan, candidate.plan), (candidate.plan, reference.plan))
            along = [
                place for pair in both_ways for places_there in going_along(*pair).values() for place in places_there
            ]
            assert len({*places, *along}) == len(places) + len(along), seed


@pytest.mark.parametrize("block", range(2))
def test_a_value_that_rests_decides_nothing(tmp_path: Path, graphs: list[Graph], block: int) -> None:
    """What `going_along` relies on: taking over the other side's resting values leaves a side what it is."""
    for seed in range(300 + 10 * block, 310 + 10 * block):
        for reference, candidate in filter(None, [drawn(tmp_path, graphs, seed)]):
            for plan, source in ((reference.plan, candidate.plan), (candidate.plan, reference.plan)):
                places = [
                    (node.name, attribute.name)
                    for node in plan.graph.nodes
                    for attribute in node.attributes
                    if attribute.name not in plan.active(node)
                ]
                assert in_effect(with_settings(plan, places, source)) == in_effect(plan), seed
