"""How differences are bundled, how bundles are taken apart, and that no way of bundling loses or doubles any."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from moeparity.bisection.observers import Changes
from moeparity.bisection.toggles.data import ToggleResult
from moeparity.bisection.toggles.data import TrialResult as Trial
from moeparity.bisection.toggles.effects import worth_splitting
from moeparity.bisection.toggles.show import reading
from moeparity.engine.lockstep import run
from moeparity.engine.walker import Walker
from moeparity.errors import Where
from moeparity.plan.difference import differences
from moeparity.plan.region import nodes_within
from moeparity.plan.sides import CANDIDATE, REFERENCE, Side, micro_batches
from moeparity.plan.spec.base import By
from moeparity.plan.toggles import mixed, split, swap, toggles
from tests.plan.test_toggles import EVERYTHING, Settings, cached_model, names, side
from tests.planted.places import random_tokens

BUNDLES: tuple[By, ...] = get_args(By)
FUSED = "flashinfer-add-norm"


def two_sides(folder: Path, dtype: str = "bf16") -> tuple[Side, Side]:
    return side(folder), side(folder, EVERYTHING, profile=FUSED, dtype=dtype, micro_batch=3)


@pytest.mark.parametrize("by", BUNDLES)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_every_bundling_holds_every_difference_once(qwen3_moe: Path, by: By, dtype: str) -> None:
    reference, candidate = two_sides(qwen3_moe, dtype)
    bundles = toggles(reference, candidate, by)
    assert len(set(names(bundles))) == len(bundles)
    members = [member for toggle in bundles for member in toggle.members]
    every = differences(reference.plan, candidate.plan)
    assert sorted(map(repr, members)) == sorted(map(repr, every))
    assert [toggle.name for toggle in bundles if not toggle.members] == ["micro_batch"]
    assert differences(mixed(reference, bundles, candidate).plan, candidate.plan) == []
    assert differences(mixed(candidate, bundles, reference).plan, reference.plan) == []


def test_bundled_by_rule_a_fusion_and_an_op_are_one_toggle_each(qwen3_moe: Path) -> None:
    reference = side(qwen3_moe)
    candidate = side(qwen3_moe, {"layers[*].moe.gate:output": "fp32"}, profile=FUSED)
    assert names(toggles(reference, candidate, "rule")) == [
        "op attention",
        "fusion fused_add_rmsnorm",
        "layers[*].moe.gate",
        "op experts",
        "op combine",
    ]


def test_bundled_by_attribute_a_fusion_is_still_one_choice(qwen3_moe: Path) -> None:
    by_name = {t.name: t for t in toggles(side(qwen3_moe), side(qwen3_moe, profile=FUSED))}
    fusion = by_name["fusion fused_add_rmsnorm"]
    assert (fusion.kind, fusion.reference) == (
        "several",
        "add:output->rms_norm stored, rms_norm:normalized model (bf16), rms_norm:order native",
    )
    assert fusion.candidate == (
        "add:output->rms_norm fp32, rms_norm:normalized fp32, rms_norm:order flashinfer.rms_norm"
    )
    assert "op combine:accumulate" in by_name


def test_bundled_by_block_and_by_layer(qwen3_moe: Path) -> None:
    reference, candidate = two_sides(qwen3_moe)
    blocks = names(toggles(reference, candidate, "block"))
    assert set(blocks) == {"attention", "moe", "norms", "router", "experts", "combine", "head", "micro_batch"}
    layers = names(toggles(reference, candidate, "layer"))
    assert layers == ["layers[0]", "layers[1]", "layers[2]", "norm", "lm_head", "micro_batch"]
    nodes = names(toggles(reference, candidate, "node"))
    assert nodes[:2] == ["layers[0].attention.attend", "layers[0].attention.residual"]


def test_taken_apart_to_the_last_difference(qwen3_moe: Path) -> None:
    """Every split keeps all members, each part has its own name, and it ends with single differences."""
    reference, candidate = two_sides(qwen3_moe, "fp32")
    for by in BUNDLES:
        queue, visited = list(toggles(reference, candidate, by)), set[str]()
        while queue:
            toggle = queue.pop()
            assert toggle.name not in visited
            visited.add(toggle.name)
            parts = split(toggle)
            assert all(part.parent == toggle.name for part in parts)
            if parts:
                assert len(parts) > 1
                assert sorted(repr(m) for p in parts for m in p.members) == sorted(map(repr, toggle.members))
            else:
                assert len(toggle.members) <= 1
            queue += parts


def test_a_fusion_is_taken_apart_by_attribute_then_by_place_then_by_layer(qwen3_moe: Path) -> None:
    by_name = {t.name: t for t in toggles(side(qwen3_moe), side(qwen3_moe, profile=FUSED), "rule")}
    edge, weight, order = split(by_name["fusion fused_add_rmsnorm"])
    assert edge.name == "fusion fused_add_rmsnorm / add:output->rms_norm"
    assert weight.name == "fusion fused_add_rmsnorm / rms_norm:normalized"
    assert order.name == "fusion fused_add_rmsnorm / rms_norm:order"
    assert [part.name for part in split(weight)] == [
        "layers[0:3].moe.norm:normalized",
        "layers[1:3].attention.norm:normalized",
        "norm:normalized",
    ]
    first, second = split(split(weight)[0])
    assert (first.name, second.name) == ("layers[0:2].moe.norm:normalized", "layers[2].moe.norm:normalized")


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("selector", ["layers[*].moe", "layers[1]", "layers[0:2].attention.attend"])
def test_a_swapped_block_has_the_references_numerics_and_nothing_else(
    qwen3_moe: Path, selector: str, dtype: str
) -> None:
    """Where nothing else differs the swap gives the reference's bits at every node, in another dtype too."""
    model = cached_model(qwen3_moe)
    reference = side(qwen3_moe)
    block_nodes = nodes_within(selector, model.graph, Where(Path(__file__)))
    candidate = side(qwen3_moe, profile="hf-default", dtype=dtype)
    block = swap(selector, block_nodes, reference, candidate)
    assert block is not None
    assert set(block.nodes) <= set(block_nodes)
    only = mixed(reference, [block], candidate)
    back = mixed(only, [block], reference)
    changes = Changes([("only", REFERENCE), ("back", REFERENCE)])
    variants = {REFERENCE: reference, CANDIDATE: candidate, "only": only, "back": back}
    walkers = [Walker(name=name, plan=s.plan, schedule=micro_batches(s)) for name, s in variants.items()]
    run(walkers, model.weights, random_tokens(4, 6), [changes])
    assert changes.nodes["back", REFERENCE] == set()
    first = min(model.graph.nodes.index(n) for n in model.graph.nodes if n.name in block_nodes)
    touched = [i for i, n in enumerate(model.graph.nodes) if n.name in changes.nodes["only", REFERENCE]]
    assert touched
    assert min(touched) >= first


def test_a_swap_where_nothing_differs_is_none(qwen3_moe: Path) -> None:
    reference, candidate = side(qwen3_moe), side(qwen3_moe, {"lm_head:output": "fp32"})
    block_nodes = nodes_within("layers[*]", cached_model(qwen3_moe).graph, Where(Path(__file__)))
    assert swap("layers[*]", block_nodes, reference, candidate) is None


def effect(name: str, alone: float, *, parent: str | None = None, change: float = 1.0, nodes: int = 3) -> ToggleResult:
    trial = Trial(kl=alone, k3=alone, flipped_routes=0.0, changed_nodes=nodes)
    return ToggleResult(
        name=name,
        kind="form",
        reference="a",
        candidate="b",
        reference_origin="a.yaml:1",
        candidate_origin="b.yaml:1",
        parent=parent,
        nodes=3,
        reference_evidence="read",
        candidate_evidence="read",
        alone=trial,
        restored=trial,
        restored_change_low=change - 2,
        restored_change_high=change,
        restores_all=False,
        large=False,
        legal=True,
        had_no_effect=not nodes,
        masked=False,
    )


def test_passes_go_where_the_share_is() -> None:
    effects = [
        effect("large", 0.5),
        effect("small", 0.05),
        effect("small, but restoring it helps", 0.05, change=-0.1),
        effect("silent", 0.0, nodes=0),
        effect("split", 0.9),
        effect("its part", 0.8, parent="split"),
    ]
    assert worth_splitting(effects, 1.0) == ["large", "small, but restoring it helps", "its part"]


def test_words_name_the_smallest_part_that_makes_most_of_a_toggle() -> None:
    effects = [
        effect("whole", 0.4),
        effect("first half", 0.1, parent="whole"),
        effect("second half", 0.38, parent="whole"),
        effect("layer 3", 0.3, parent="second half"),
        effect("layer 4", 0.1, parent="second half"),
    ]
    (sentence,) = [s for s in reading(effects, 1.0) if "largest part" in s]
    assert sentence == "In whole (read) the largest part is layer 3 (read): alone it costs 30% of the whole divergence."


def test_edges_of_one_node_have_names_that_tell_them_apart(qwen3_moe: Path) -> None:
    """Each part's name, written into a recipe, sets what the part moves and nothing else."""
    whole: Settings = {"layers[0:2].attention.norm:output->linear": "fp32"}
    reference, candidate = side(qwen3_moe), side(qwen3_moe, whole)
    (toggle,) = (t for t in toggles(reference, candidate) if t.members)
    queue, leaves = [toggle], []
    while queue:
        parts = split(queue.pop())
        queue += parts
        leaves += [part.name for part in parts if not split(part)]
        for part in parts:
            alone = side(qwen3_moe, {part.name: "fp32"})
            places = [member.places for member in part.members]
            assert [d.places for d in differences(reference.plan, alone.plan)] == places, part.name
    assert sorted(leaves) == [
        f"layers[{i}].attention.norm:output->layers[{i}].attention.{reader}_proj" for i in (0, 1) for reader in "kqv"
    ]


def test_a_rule_that_names_some_readers_keeps_their_names(qwen3_moe: Path) -> None:
    """A toggle's name, written into a recipe, sets what the toggle moves: no other linear that reads the norm."""
    edge = "layers[*].attention.norm:output->layers[*].attention.q_proj"
    reference, candidate = side(qwen3_moe), side(qwen3_moe, {edge: "fp32"})
    (toggle,) = (t for t in toggles(reference, candidate) if t.members)
    assert toggle.name == edge
    alone = side(qwen3_moe, {toggle.name: "fp32"})
    moved = [member.places for member in toggle.members]
    assert [d.places for d in differences(reference.plan, alone.plan)] == moved
