"""The census of planted flips against a plain evaluation, token by token, of what two separate forwards saved."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from moeparity.bisection.flips.census import BINS, MAP_BITS, Census, bin_of
from moeparity.bisection.flips.measure import routing_flips
from moeparity.bisection.flips.observe import FlipObserver
from moeparity.bisection.observe import observe
from moeparity.bisection.prepare import prepare
from moeparity.bisection.resume.codec import Codec
from moeparity.bisection.study import Study
from moeparity.bisection.trials import alone, restored
from moeparity.engine.forward import forward
from moeparity.engine.view import NodeView
from moeparity.inputs.model import Model, open_model
from moeparity.numerics.bits import int_view
from moeparity.ops.attribute import Value
from moeparity.ops.registry import OPS
from moeparity.plan.address import file_key
from tests.planted.places import random_tokens, write_recipe

Settings = Mapping[str, Value]

SHAPE = (8, 64)


@dataclass
class Planted:
    """A recipe's pass, and both sides run on their own."""

    study: Study
    census: Census
    saved: list[dict[str, torch.Tensor]] = field(default_factory=list)

    def value(self, side: int, node: str) -> torch.Tensor:
        return self.saved[side][file_key(node)]

    def routes(self, side: int, layer: int, part: str = "ids") -> torch.Tensor:
        return self.saved[side][f"layers.{layer}.router.{part}"].view(*SHAPE, -1)


def planted(folder: Path, checkpoint: Path, reference: Settings, candidate: Settings) -> Planted:
    ids = random_tokens(*SHAPE)
    sides = ({"set": dict(reference)}, {"set": dict(candidate)})
    study = prepare(write_recipe(folder, checkpoint, {"input_ids": ids}, *sides), device="cpu", opener=opened)
    census = observe(study, study.toggles).sections["flips"]
    assert census is not None
    nodes = [f"layers[{layer}].moe.{name}" for layer in census.layers for name in ("norm", "gate")]
    nodes += [node.name for node in study.model.graph.nodes if node.name.endswith("attention.attend")]
    saved = [forward(study.model, ids, settings=dict(settings), save=nodes) for settings in (reference, candidate)]
    return Planted(study, census, saved)


def opened(folder: Path, **_: object) -> Model:
    return open_model(folder, device="cpu", residency="resident")


def same_row(a: torch.Tensor, b: torch.Tensor) -> bool:
    wide = torch.promote_types(a.dtype, b.dtype)
    return bool((int_view(a.to(wide)) == int_view(b.to(wide))).all())


def expected_bits(flips_planted: Planted) -> tuple[torch.Tensor, Counter[tuple[int, str]]]:
    """The map, without ties, and where the rows of roots first differ, by loops over tokens."""
    census = flips_planted.census
    map_ = torch.zeros(len(census.layers), *SHAPE, dtype=torch.uint8)
    root_at: Counter[tuple[int, str]] = Counter()
    flipped: set[tuple[int, int]] = set()
    for place, layer in enumerate(census.layers):
        cells_here: set[tuple[int, int]] = set()
        for b in range(SHAPE[0]):
            for t in range(SHAPE[1]):
                ours, theirs = (flips_planted.routes(side, layer)[b, t].tolist() for side in (0, 1))
                bits = MAP_BITS["compared"]
                bits += MAP_BITS["slots_differ"] * (ours != theirs)
                bits += MAP_BITS["zero_overlap"] * (not set(ours) & set(theirs))
                if set(ours) != set(theirs):
                    cells_here.add((b, t))
                    bits += MAP_BITS["set_differs"]
                    rows = [
                        [flips_planted.value(side, f"layers[{layer}].moe.{name}")[b, t] for side in (0, 1)]
                        for name in ("norm", "gate")
                    ]
                    if same_row(*rows[0]):
                        bits += MAP_BITS["root"]
                        root_at[place, "router" if same_row(*rows[1]) else "gate"] += 1
                    elif (b, t) in flipped:
                        bits += MAP_BITS["after_own_flip"]
                    elif any((b, earlier) in flipped for earlier in range(t)):
                        bits += MAP_BITS["after_others_flip"]
                map_[place, b, t] = bits
        flipped |= cells_here
    return map_, root_at


def assert_equals_the_plain_evaluation(flips_planted: Planted) -> None:
    census = flips_planted.census
    map_, root_at = expected_bits(flips_planted)
    assert torch.equal(census.map & ~MAP_BITS["tied"], map_)
    assert +census.root_at == root_at
    for place, layer in enumerate(census.layers):
        pairs: Counter[tuple[int, int]] = Counter()
        drift = []
        for b in range(SHAPE[0]):
            for t in range(SHAPE[1]):
                ours, theirs = (flips_planted.routes(side, layer)[b, t].tolist() for side in (0, 1))
                pairs.update(
                    zip([x for x in ours if x not in theirs], [x for x in theirs if x not in ours], strict=True)
                )
                weights = [flips_planted.routes(side, layer, "weights")[b, t].tolist() for side in (0, 1)]
                drift += [abs(weights[1][theirs.index(x)] - weights[0][ours.index(x)]) for x in ours if x in theirs]
        assert census.pairs[place] == pairs
        assert census.drift[place].shared == len(drift)
        assert census.drift[place].max_abs == max(drift)
        assert math.isclose(census.drift[place].sum_abs, math.fsum(drift), rel_tol=1e-12, abs_tol=1e-300)


def chosen(census: Census, name: str) -> int:
    return int(census.has(MAP_BITS[name]).sum())


def test_a_gate_rounding_makes_roots_in_its_layer_and_inherited_flips_after_it(tmp_path: Path, qwen3_moe: Path) -> None:
    flips_planted = planted(tmp_path, qwen3_moe, {}, {"layers[1].moe.gate:output": "fp32"})
    assert_equals_the_plain_evaluation(flips_planted)
    census = flips_planted.census
    by_layer = census.has(MAP_BITS["set_differs"]).sum((1, 2)).tolist()
    roots = census.has(MAP_BITS["root"]).sum((1, 2)).tolist()
    assert by_layer[0] == 0
    assert by_layer[1] == roots[1] == census.root_at[1, "gate"] > 0
    assert (roots[2], by_layer[2] > 0) == (0, True)
    assert census.left_at.keys() == {("layers[1].moe.gate", False)}, "unrounded logits differ in every token"


def test_an_attention_rounding_makes_inherited_flips_only(tmp_path: Path, qwen3_moe: Path) -> None:
    flips_planted = planted(tmp_path, qwen3_moe, {}, {"layers[0].attention.attend:probabilities": "fp32"})
    assert_equals_the_plain_evaluation(flips_planted)
    census = flips_planted.census
    assert chosen(census, "root") == 0
    assert chosen(census, "set_differs") > 0
    assert chosen(census, "after_own_flip") > 0
    # At the first layer there is no flip before.
    assert not bool(
        census.has(MAP_BITS["after_own_flip"])[0].any() | census.has(MAP_BITS["after_others_flip"])[0].any()
    )
    assert {key for key in census.left_at if key[0] != "layers[0].attention.attend"} <= {
        ("layers[1].attention.attend", True),
        ("layers[2].attention.attend", True),
    }
    assert sum(census.left_at.values()) == int(census.has(MAP_BITS["set_differs"]).any(0).sum())


def test_exact_ties_are_root_flips_of_the_router(tmp_path: Path, qwen3_moe: Path) -> None:
    """Logits in bf16 tie; which of two equals is taken is the tie-break rule's choice alone."""
    node = "layers[0].moe.router:tie_break"
    flips_planted = planted(tmp_path, qwen3_moe, {node: "lowest_index"}, {node: "highest_index"})
    assert_equals_the_plain_evaluation(flips_planted)
    census = flips_planted.census
    first = census.has(MAP_BITS["set_differs"])[0]
    assert int(first.sum()) == census.root_at[0, "router"] == census.margins[0].tie_flips > 0
    assert torch.equal(first & census.has(MAP_BITS["tied"])[0], first)
    logits = flips_planted.value(0, "layers[0].moe.gate").float()
    ordered = logits.sort(-1, descending=True).values
    k = census.top_k
    assert census.margins[0].ties == int((ordered[..., k - 1] == ordered[..., k]).sum())
    assert int(census.margins[0].bins[1].sum()) == 0


@pytest.mark.parametrize(
    ("place", "value"), [("layers[1].moe.router:choice", "bf16"), ("layers[0].attention.residual:output", "fp16")]
)
def test_a_grouped_router_with_a_bias(tmp_path: Path, deepseek_v3: Path, place: str, value: str) -> None:
    """Margins and perturbations by a plain evaluation of the biased scores and of the groups kept."""
    flips_planted = planted(tmp_path, deepseek_v3, {}, {place: value})
    assert_equals_the_plain_evaluation(flips_planted)
    census = flips_planted.census
    assert census.layers == [1, 2], "the first layer is dense"
    roots = int(census.has(MAP_BITS["set_differs"])[0].sum()) if "router" in place else 0
    assert (census.root_at[0, "router"], census.root_at.total(), roots > 0) == (roots, roots, "router" in place)
    for i, layer in enumerate(census.layers):
        assert_margins(
            flips_planted, i, layer, torch.bfloat16 if place.startswith(f"layers[{layer}].moe") else torch.float32
        )
    assert sum(margins.group_flips for margins in census.margins.values()) > 0


def assert_margins(flips_planted: Planted, place: int, layer: int, candidate: torch.dtype) -> None:
    """Scores of tokens with logits of both sides, one by one, groups of four of which two are kept."""
    bias = flips_planted.study.model.weights.checkpoint.tensor(f"model.layers.{layer}.mlp.gate.e_score_correction_bias")
    census, bins = flips_planted.census, torch.zeros(4, BINS, dtype=torch.int64)
    ties = groups = within = 0
    for b in range(SHAPE[0]):
        for t in range(SHAPE[1]):
            scores, chosen_sets, margins = [], [], []
            for side in (0, 1):
                choice_scores = flips_planted.value(side, f"layers[{layer}].moe.gate")[b, t].float().sigmoid() + bias
                choice_scores = choice_scores.to(candidate) if side else choice_scores
                best = choice_scores.view(4, 4).topk(2).values.sum(-1).topk(2).indices.tolist()
                ids = flips_planted.routes(side, layer)[b, t].tolist()
                allowed = [e for e in range(16) if e // 4 in best]
                low = min(choice_scores[e].item() for e in ids)
                margins.append(low - max(choice_scores[e].item() for e in allowed if e not in ids))
                scores.append(choice_scores.double())
                chosen_sets.append(sorted(best))
                if side == 0:
                    _, runner = max((choice_scores[e].item(), e) for e in allowed if e not in ids)
                    at = torch.tensor(low, dtype=torch.float32)
                    away = torch.tensor(math.copysign(math.inf, low))
                    ulp = abs(torch.nextafter(at, away).item() - low)
            flipped = bool(census.has(MAP_BITS["set_differs"])[place, b, t])
            if 0.0 in margins:
                ties += 1
            elif flipped and chosen_sets[0] != chosen_sets[1]:
                groups += 1
            else:
                near = {runner, *(e for side in (0, 1) for e in flips_planted.routes(side, layer)[b, t].tolist())}
                moved = max(abs((scores[1] - scores[0])[e].item()) for e in near) / ulp
                margin = margins[0] / ulp
                within += margin <= 2 * moved
                for row, number in ((0, margin), (2, moved)):
                    bins[row, bin_of(torch.tensor([number], dtype=torch.float64))] += 1
                    bins[row + 1, bin_of(torch.tensor([number], dtype=torch.float64))] += flipped
    counted = census.margins[place]
    assert torch.equal(counted.bins, bins)
    assert (counted.ties, counted.group_flips, counted.within_reach) == (ties, groups, within)
    assert counted.dtype == "float32"


def test_bins_are_powers_of_two() -> None:
    numbers = torch.tensor([0.0, 0.5, 1.0, 1.999, 2.0, 3.0, 4.0, 2.0**32, 2.0**60, math.inf], dtype=torch.float64)
    assert bin_of(numbers).tolist() == [0, 0, 1, 1, 2, 2, 3, 33, 33, 33]


def test_what_choices_share_with_the_candidate(tmp_path: Path, qwen3_moe: Path) -> None:
    """One of two choices makes all flips of its layer: alone it flips the same, restored none is left there."""
    gate, combine = "layers[2].moe.gate:output", "layers[2].moe.combine:accumulate"
    flips_planted = planted(tmp_path, qwen3_moe, {}, {gate: "fp32", combine: "fp32"})
    flips = chosen(flips_planted.census, "set_differs")
    by_name = {toggle.name: toggle for toggle in flips_planted.study.toggles}
    also = flips_planted.census.also
    assert flips > 0
    assert (also[alone(by_name[gate])], also[restored(by_name[gate])]) == (flips, 0)
    assert (also[alone(by_name[combine])], also[restored(by_name[combine])]) == (0, flips)
    section = routing_flips(
        flips_planted.census, {n.name: n for n in flips_planted.study.model.graph.nodes}, flips_planted.study.toggles
    )
    assert section is not None
    assert section.detail is not None
    assert {c.name: (c.alone, c.gone) for c in section.detail.choices} == {gate: (flips, flips), combine: (0, 0)}


def test_cost_is_apart_by_the_position_that_predicts(tmp_path: Path, qwen3_moe: Path) -> None:
    flips_planted = planted(tmp_path, qwen3_moe, {}, {"layers[*].moe.gate:output": "fp32"})
    cost, flipped = flips_planted.census.cost, flips_planted.census.has(MAP_BITS["set_differs"]).any(0)
    assert cost is not None
    logits = [saved["logits"].double().log_softmax(-1) for saved in flips_planted.saved]
    ids = flips_planted.study.tokens.input_ids
    expected = torch.zeros(2, 2, SHAPE[0], dtype=torch.float64)
    tokens = torch.zeros(2, SHAPE[0])
    for b in range(SHAPE[0]):
        for t in range(1, SHAPE[1]):
            which = int(flipped[b, t - 1])
            ours, theirs = (side[b, t - 1] for side in logits)
            tokens[which, b] += 1
            expected[which, 0, b] += (theirs.exp() * (theirs - ours)).sum()
            expected[which, 1, b] += abs(ours[ids[b, t]] - theirs[ids[b, t]])
    assert torch.equal(cost[:, 0], tokens.double())
    assert 0 < int(tokens[1].sum()) < int(tokens.sum())
    torch.testing.assert_close(cost[:, [1, 3]], expected, rtol=1e-9, atol=1e-12)


def test_identical_sides_flip_nothing_and_a_census_is_kept_as_it_was(tmp_path: Path, qwen3_moe: Path) -> None:
    from moeparity.bisection.measures import codec

    flips_planted = planted(tmp_path, qwen3_moe, {}, {})
    assert set(flips_planted.census.map.unique().tolist()) <= {
        MAP_BITS["compared"],
        MAP_BITS["compared"] + MAP_BITS["tied"],
    }
    keeper: Codec = codec(flips_planted.study.model.graph)
    plain, tensors = keeper.encode(flips_planted.census)
    again = keeper.decode(plain, tensors)
    assert torch.equal(again.map, flips_planted.census.map)
    assert (again.flips, again.pairs, again.also) == (
        flips_planted.census.flips,
        flips_planted.census.pairs,
        flips_planted.census.also,
    )


def test_padding_is_left_out(tmp_path: Path, qwen3_moe: Path) -> None:
    ids, mask = random_tokens(3, 12), torch.ones(3, 12, dtype=torch.int64)
    mask[0, :5] = 0
    mask[1, :1] = 0
    candidate = {"set": {"layers[*].moe.gate:output": "fp32"}}
    path = write_recipe(tmp_path, qwen3_moe, {"input_ids": ids, "attention_mask": mask}, {}, candidate)
    study = prepare(path, device="cpu", opener=opened)
    census = observe(study, ()).sections["flips"]
    assert census is not None
    assert torch.equal(census.has(MAP_BITS["compared"]), mask.bool().expand(3, 3, 12))
    section = routing_flips(census)
    assert section is not None
    assert section.tokens == int(mask.sum())


def test_a_pad_that_left_the_references_bits_is_no_earlier_token() -> None:
    mask = torch.tensor([[False, False, True, True]])
    observer = FlipObserver(
        {},
        [],
        [],
        output="lm_head",
        input_ids=torch.zeros(1, 4, dtype=torch.int64),
        loss_mask=mask,
        attention_mask=mask,
        sampled_from="candidate",
    )

    def differ(name: str, op: str, at: list[int]) -> None:
        values = {"reference": torch.zeros(1, 4, 2), "candidate": torch.zeros(1, 4, 2)}
        values["candidate"][0, at] = 1.0
        view = SimpleNamespace(
            ran=lambda *_: True,
            wave=(0, 1),
            node=SimpleNamespace(name=name, op=OPS[op]),
            outputs={side: [value] for side, value in values.items()},
            outputs_agree=lambda *sides: values[sides[0]] is values[sides[1]],
            tensor=lambda side, _: values[side],
        )
        observer.see(cast("NodeView", view))

    differ("layers[0].attention.attend", "attention", [0, 1])
    assert not observer.left_at
    differ("layers[1].attention.attend", "attention", [2])
    assert observer.left_at.keys() == {("layers[1].attention.attend", False)}
    differ("layers[2].attention.attend", "attention", [3])
    assert ("layers[2].attention.attend", True) in observer.left_at
