"""Whole bisections: a recipe goes in, a Report comes out."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from moeparity import bisect
from moeparity.bisection.divergence.show import growth_table
from moeparity.bisection.measures import summarise
from moeparity.bisection.observe import observe
from moeparity.bisection.prepare import prepare
from moeparity.bisection.report import SCHEMA, Report
from moeparity.engine.forward import forward
from moeparity.inputs.model import Model
from moeparity.metrics.verdict import MINIMUM_SEQUENCES
from moeparity.numerics.bits import same_bits
from moeparity.output.json import digest
from moeparity.plan.address import file_key
from moeparity.plan.graph import Node
from tests.checkpoint_factory import make_small
from tests.opened import opened
from tests.planted.places import random_tokens, write_recipe
from tests.printed import printed

Side = Mapping[str, Any]
Tensors = dict[str, torch.Tensor]

SEQUENCES = 30
ACCUMULATE = {"set": {"layers[*].moe.combine:accumulate": "fp32"}}


def report_of(
    folder: Path,
    checkpoint: Path,
    reference: Side,
    candidate: Side,
    *,
    tokens: Tensors | None = None,
    **gate: Any,
) -> Report:
    token_fields = tokens or {"input_ids": random_tokens(SEQUENCES, 8)}
    return bisect(
        write_recipe(folder, checkpoint, token_fields, reference, candidate, **gate), device="cpu", opener=opened
    )


def strict(report: Report) -> dict[str, Any]:
    """The report's JSON, read by a parser that takes no NaN and no Infinity."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    data = json.loads(report.to_json(), parse_constant=refuse)
    assert isinstance(data, dict)
    return data


def test_identical_sides(tmp_path: Path, qwen3_moe: Path) -> None:
    report = report_of(tmp_path, qwen3_moe, {}, {})
    assert (report.verdict.status, report.verdict.reason, report.exit_code) == ("pass", "all bits are equal", 0)
    assert (report.roots, report.toggles, report.reading) == ((), (), ())
    metrics = asdict(report.metrics)
    assert metrics.pop("top1_agreement") == 1.0
    assert set(metrics.values()) == {0}
    value = report.verdict.value
    assert (value.estimate, value.low, value.high) == (0.0, 0.0, 0.0)
    for node in report.nodes:
        for size in (node.carried, node.local):
            assert (size.equal_share, size.max_abs, size.max_ulp, size.relative_l2) == (1.0, 0.0, 0, 0.0)
    assert report.flips is not None
    assert report.flips.tokens_any_layer == 0
    assert report.cost.evaluations == len(opened(qwen3_moe).graph.nodes), "both sides are computed once"


def test_identical_sides_pass_with_one_sequence(tmp_path: Path, qwen3_moe: Path) -> None:
    report = report_of(tmp_path, qwen3_moe, {}, {}, tokens={"input_ids": random_tokens(1, 5)})
    assert (report.verdict.status, report.exit_code) == ("pass", 0)


def test_every_difference_of_the_shipped_profiles(tmp_path: Path, qwen3_moe: Path) -> None:
    """Where any re-rounding costs as much as all of them, that is what the report says."""
    report = report_of(tmp_path, qwen3_moe, {}, {"profile": "hf-default"}, below=1e-9)
    assert (report.verdict.status, report.exit_code) == ("fail", 1)
    first = report.roots[0]
    assert (first.node, first.sequences) == ("layers[0].attention.attend", SEQUENCES)
    (choice,) = first.choices
    assert (choice.attribute, choice.reference_evidence, choice.candidate_evidence) == (
        "implementation",
        *["verified"] * 2,
    )
    (not_sure,) = [sentence for sentence in report.reading if "whether other choices can replace" in sentence]
    assert not_sure.startswith("Not decided with these sequences: whether other choices can replace op ")
    assert "op experts:implementation" in [toggle.name for toggle in report.toggles if toggle.had_no_effect]
    assert all(toggle.restored.kl > 0 for toggle in report.toggles), "no single one is enough"


def test_local_errors_are_the_nodes_own(tmp_path: Path, qwen3_moe: Path) -> None:
    """The candidate's numerics on the reference's inputs err where they differ only; what it carries errs after."""
    node = "layers[0].moe.combine"
    report = report_of(tmp_path, qwen3_moe, {}, {"set": {f"{node}:accumulate": "fp32"}})
    assert [error.node for error in report.nodes if error.local.equal_share < 1] == [node]
    (node_error,) = (error for error in report.nodes if error.node == node)
    assert node_error.local == node_error.carried
    carried = [error.node for error in report.nodes if error.carried.equal_share < 1]
    assert (carried[0], carried[-1]) == (node, "lm_head")
    assert [growth.largest_local_node for growth in report.growth if growth.largest_local] == [node]


def test_no_error_is_measured_where_the_sides_hold_other_things(tmp_path: Path, qwen3_moe: Path) -> None:
    """Rows that have met their routing weights are no wrong rows: only what comes of them can be held to the others."""
    settings = {"layers[1].moe.experts:score_site": "epilogue", "layers[0].moe.combine:accumulate": "fp32"}
    report = report_of(tmp_path, qwen3_moe, {}, {"set": settings})
    apart = ("layers[1].moe.experts", "layers[1].moe.combine")
    assert not {error.node for error in report.nodes} & set(apart)
    assert [growth.not_measured for growth in report.growth if growth.not_measured] == [apart]
    assert [growth.largest_local_node for growth in report.growth if growth.largest_local] == ["layers[0].moe.combine"]
    last = next(error for error in report.nodes if error.node == "layers[1].moe.residual")
    assert 0 < last.carried.relative_l2 < 0.05
    section = printed([growth_table(report)], 100)
    assert "not measured" in section
    assert (
        "No local error at moe.experts and moe.combine: the sides' values can't be held against each other."
        in " ".join(section.split())
    )


def test_toggles_that_meet_in_one_node_are_all_named(tmp_path: Path, qwen3_moe: Path) -> None:
    node = "layers[1].moe.combine"
    settings = {
        f"{node}:accumulate": "fp32",
        f"{node}:leaves": "slot",
        "layers[1].moe.experts:implementation": "grouped",
    }
    report = report_of(tmp_path, qwen3_moe, {}, {"set": settings})
    assert [(root.node, [c.attribute for c in root.choices]) for root in report.roots] == [
        (node, ["accumulate", "leaves"])
    ]


def test_a_choice_without_effect_at_a_root_is_not_named(tmp_path: Path, qwen3_moe: Path) -> None:
    node = "layers[1].moe.experts"
    settings = {f"{node}:implementation": "grouped", f"{node}:activation": "fp32"}
    report = report_of(tmp_path, qwen3_moe, {}, {"set": settings})
    assert [(root.node, [c.attribute for c in root.choices]) for root in report.roots] == [(node, ["activation"])]
    assert [toggle.name for toggle in report.toggles if toggle.had_no_effect] == [f"{node}:implementation"]


def test_choices_of_which_none_acts_alone_are_all_named(tmp_path: Path, qwen3_moe: Path) -> None:
    node = "layers[1].moe.combine"
    candidate = {"set": {f"{node}:accumulate": "fp32", f"{node}:leaves": "slot"}}
    recipe = write_recipe(tmp_path, qwen3_moe, {"input_ids": random_tokens(3, 5)}, {}, candidate)
    ready = prepare(recipe, device="cpu", opener=opened)
    observed = observe(ready, ready.toggles)
    for nodes in observed.changes.roots.values():
        nodes.clear()
    (root,) = summarise(ready, observed).roots
    assert [choice.attribute for choice in root.choices] == ["accumulate", "leaves"]


# -- schedule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(6, 1), (6, 4), (4, 3), (1, 2)], ids=lambda s: f"{s[0]}_{s[1]}")
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_micro_batch(tmp_path: Path, qwen3_moe: Path, dtype: str, sizes: tuple[int, int]) -> None:
    """Whether it matters is this machine's business; the report must say what two separate forwards say."""
    ids = random_tokens(6, 3)
    sides = [{"dtype": dtype, "micro_batch": size} for size in sizes]
    report = report_of(tmp_path, qwen3_moe, *sides, tokens={"input_ids": ids})
    values = [everything(qwen3_moe, ids, side) for side in sides]
    assert_roots_are_first(report, opened(qwen3_moe), *values)
    (toggle,) = report.toggles
    assert (toggle.name, toggle.kind, toggle.nodes) == ("micro_batch", "schedule", 0)
    assert (toggle.reference, toggle.candidate) == tuple(map(str, sizes))
    assert toggle.had_no_effect == (not report.roots)
    assert (toggle.restored.kl, toggle.alone.kl) == (0.0, report.metrics.kl)
    for root in report.roots:
        assert [choice.attribute for choice in root.choices] == ["micro_batch"]


def test_micro_batch_matters_where_a_gemm_has_one_row_or_several(tmp_path: Path, qwen3_moe: Path) -> None:
    tokens = {"input_ids": random_tokens(SEQUENCES, 2)}
    sides = [{"dtype": "fp32", "micro_batch": size} for size in (SEQUENCES, 1)]
    report = report_of(tmp_path, qwen3_moe, *sides, tokens=tokens)
    assert [choice.attribute for choice in report.roots[0].choices] == ["micro_batch"]
    assert report.reading == ("micro_batch (set by the recipe) alone makes the whole difference.",)


def test_micro_batches_larger_than_the_token_file_are_one(tmp_path: Path, qwen3_moe: Path) -> None:
    report = report_of(tmp_path, qwen3_moe, {"micro_batch": SEQUENCES}, {"micro_batch": 1000})
    assert (report.toggles, report.candidate.micro_batch) == ((), SEQUENCES)


def last_of_five_is_rounded_its_own_way(checkpoint: Path, tokens: int) -> bool:
    """Whether this processor's q_proj of one sequence differs from that of five, and that of four does not."""
    weights = load_file(checkpoint / "model.safetensors")
    x = weights["model.embed_tokens.weight"][random_tokens(5, tokens)].float()
    x = torch.nn.functional.rms_norm(x, x.shape[-1:])
    w = weights["model.layers.0.self_attn.q_proj.weight"].float()
    five, four, fifth = (torch.nn.functional.linear(part, w) for part in (x, x[:4], x[4:]))
    return same_bits(five[:4], four) and not same_bits(five[4:], fifth)


def test_micro_batch_is_not_blamed_where_it_acts_in_other_sequences(tmp_path: Path, qwen3_moe: Path) -> None:
    """The last sequence alone is a GEMM of few rows, which fp32 rounds its own way; the others differ in `rope`."""
    length = next(tokens for tokens in range(2, 32) if last_of_five_is_rounded_its_own_way(qwen3_moe, tokens))
    rope = "layers[0].attention.rope"
    reference = {"dtype": "fp32", "micro_batch": 5}
    candidate = {"dtype": "fp32", "micro_batch": 4, "set": {f"{rope}:products": "bf16"}}
    report = report_of(tmp_path, qwen3_moe, reference, candidate, tokens={"input_ids": random_tokens(5, length)})
    by_node = {root.node: ([c.attribute for c in root.choices], root.sequences) for root in report.roots}
    assert by_node[rope] == (["products"], 4)
    assert by_node["layers[0].attention.q_proj"] == (["micro_batch"], 1)


# -- dtype -----------------------------------------------------------------------------------------------------------


def test_dtype(tmp_path: Path, qwen3_moe: Path) -> None:
    report = report_of(tmp_path, qwen3_moe, {}, {"dtype": "fp32"})
    assert (report.reference.dtype, report.candidate.dtype) == ("bf16", "fp32")
    (toggle,) = report.toggles
    assert (toggle.name, toggle.kind, toggle.reference, toggle.candidate) == ("dtype", "dtype", "bf16", "fp32")
    assert report.metrics.kl > 0
    assert (toggle.alone.kl, toggle.restored.kl) == (report.metrics.kl, 0.0)
    assert [choice.attribute for choice in report.roots[0].choices] == ["dtype"]


def test_an_attribute_that_only_the_dtype_switches_on(tmp_path: Path, qwen3_moe: Path) -> None:
    """In fp32 `normalized: model` is fp32, so that `association` takes effect."""
    candidate = {"set": {"norm:association": "weight_rstd_first"}}
    report = report_of(tmp_path, qwen3_moe, {"dtype": "fp32"}, {"dtype": "fp32", **candidate})
    assert [root.node for root in report.roots] == ["norm"]
    report = report_of(tmp_path, qwen3_moe, {}, {"dtype": "fp32", **candidate})
    assert [(t.name, t.restored.kl) for t in report.toggles] == [("dtype", 0.0)]


# -- fail closed -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def overflowing(qwen3_moe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finite weights, the last of which are so large that their logits are not."""
    folder = tmp_path_factory.mktemp("overflowing")
    tensors = load_file(qwen3_moe / "model.safetensors")
    tensors["lm_head.weight"] = torch.full_like(tensors["lm_head.weight"], torch.finfo(torch.bfloat16).max)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_bytes((qwen3_moe / "config.json").read_bytes())
    return folder


@pytest.mark.parametrize("candidate", [{}, ACCUMULATE, {"profile": "hf-default"}], ids=["equal", "one", "several"])
def test_logits_that_are_not_finite_fail(tmp_path: Path, overflowing: Path, candidate: Side) -> None:
    report = report_of(tmp_path, overflowing, {}, candidate, below=1e9)
    scored = SEQUENCES * 7
    assert (report.verdict.status, report.exit_code) == ("fail", 1)
    assert report.verdict.reason == f"tokens with NaN or infinite logits: {scored}"
    assert report.metrics.nonfinite_tokens == scored
    assert math.isnan(report.metrics.k3)
    data = strict(report)
    assert (data["metrics"]["k3"], data["verdict"]["value"]["low"]) == ("nan", "-inf")


def test_few_sequences_cannot_pass(tmp_path: Path, qwen3_moe: Path) -> None:
    for sequences, status, code in ((MINIMUM_SEQUENCES - 1, "inconclusive", 3), (MINIMUM_SEQUENCES, "pass", 0)):
        tokens = {"input_ids": random_tokens(sequences, 8)}
        report = report_of(tmp_path, qwen3_moe, {}, ACCUMULATE, tokens=tokens, below=1e3)
        assert (report.verdict.status, report.exit_code) == (status, code)
    assert report.metrics.k3 > 0


# -- tokens ----------------------------------------------------------------------------------------------------------


def test_loss_mask(tmp_path: Path, qwen3_moe: Path) -> None:
    """What is masked is not scored, and what is scored does not depend on the mask."""
    ids = random_tokens(SEQUENCES, 8)
    whole = report_of(tmp_path, qwen3_moe, {}, ACCUMULATE, tokens={"input_ids": ids})
    parts = []
    for half in (slice(0, 4), slice(4, 8)):
        mask = torch.zeros_like(ids, dtype=torch.bool)
        mask[:, half] = True
        parts.append(report_of(tmp_path, qwen3_moe, {}, ACCUMULATE, tokens={"input_ids": ids, "loss_mask": mask}))
    # Position 0 has no logits before it.
    assert [part.run.scored_tokens for part in (whole, *parts)] == [SEQUENCES * n for n in (7, 3, 4)]
    for metric in ("k1", "k3", "kl", "mean_abs_delta"):
        totals = [getattr(p.metrics, metric) * p.run.scored_tokens for p in (whole, *parts)]
        assert totals[0] == pytest.approx(totals[1] + totals[2], rel=1e-12)
    assert whole.metrics.max_abs_delta == max(part.metrics.max_abs_delta for part in parts)
    assert whole.roots == parts[0].roots == parts[1].roots


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_neither_scored_nor_counted_as_routed(tmp_path: Path, qwen3_moe: Path, side: str) -> None:
    ids = random_tokens(3, 8)
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1, 1]]).bool()
    mask = mask if side == "left" else mask.flip(1)
    report = report_of(tmp_path, qwen3_moe, {}, ACCUMULATE, tokens={"input_ids": ids, "attention_mask": mask})
    assert report.run.scored_tokens == 4 + 7 + 6
    assert report.flips is not None
    assert {layer.tokens for layer in report.flips.layers} == {5 + 8 + 7}


def test_a_difference_in_masked_positions_only(tmp_path: Path, qwen3_moe: Path) -> None:
    """Bits differ, but no scored token does: the logits do, so that this is no pass by equal bits."""
    ids = random_tokens(3, 8)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    mask[0, 1] = True
    report = report_of(tmp_path, qwen3_moe, {}, ACCUMULATE, tokens={"input_ids": ids, "loss_mask": mask}, below=1e3)
    assert report.run.scored_tokens == 1
    assert report.verdict.status == "inconclusive"


def test_tokens_sampled_from_the_reference(tmp_path: Path, qwen3_moe: Path) -> None:
    """Only the sign of delta changes: k1 turns round, k2 stays, k3 is that of the other direction."""
    ours, theirs = (
        report_of(tmp_path, qwen3_moe, {}, ACCUMULATE, sampled_from=name) for name in ("candidate", "reference")
    )
    turned = report_of(tmp_path, qwen3_moe, ACCUMULATE, {}, sampled_from="candidate")
    assert theirs.run.sampled_from == "reference"
    assert (theirs.metrics.k1, theirs.metrics.k2) == (-ours.metrics.k1, ours.metrics.k2)
    assert theirs.metrics.kl == ours.metrics.kl
    assert theirs.metrics.k3 == turned.metrics.k3 != ours.metrics.k3


# -- the report ------------------------------------------------------------------------------------------------------


def test_json_holds_the_report(tmp_path: Path, qwen3_moe: Path) -> None:
    report = report_of(tmp_path, qwen3_moe, {}, {"profile": "hf-default", "micro_batch": 7})
    data = strict(report)
    assert data.pop("schema") == SCHEMA == "moeparity.report/3"
    assert data.pop("digest") == digest(strict(report))
    fields_left = asdict(report)
    assert fields_left.pop("per_token") is not None, "arrays, which no JSON holds"
    assert fields_left["verdict"].pop("of_record") is False, "the summary says whose the verdict is"
    # How many sequences an interval is from stands with the run.
    intervals = [
        fields_left["verdict"]["value"],
        *(trial["value"] for trial in (fields_left["floor"] or {"trials": ()})["trials"]),
    ]
    assert all(interval.pop("sequences") == SEQUENCES and interval.pop("tokens") for interval in intervals)
    # Without shares no part of the blame has bounds.
    for part in fields_left["blame"]["parts"]:
        assert all(map(math.isnan, (part["low"], part["high"])))
        part |= {"low": "nan", "high": "nan"}
    assert fields_left["blame"]["parts"]
    assert data == json.loads(json.dumps(fields_left)), "every field, every number to the last bit"


def test_gate_per_sequence(tmp_path: Path, qwen3_moe: Path) -> None:
    ids = random_tokens(SEQUENCES, 8)
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[0, 2:] = False
    tokens = {"input_ids": ids, "loss_mask": mask}
    token, sequence = (
        report_of(tmp_path, qwen3_moe, {}, ACCUMULATE, tokens=tokens, reduce=reduce) for reduce in ("token", "sequence")
    )
    assert token.verdict.value.estimate == token.metrics.k3
    assert sequence.verdict.value.estimate != token.verdict.value.estimate
    assert sequence.verdict.reduce == "sequence"


CASES: dict[str, tuple[Side, Side]] = {
    "one": ({}, ACCUMULATE),
    "several": ({}, {"profile": "hf-default", "set": {"layers[*].moe.gate:output": "fp32"}}),
    "late before early": ({}, {"set": {"lm_head:output": "fp32", "layers[1].moe.gate:output": "fp32"}}),
    "batches": ({"micro_batch": 4, "dtype": "fp32"}, {"micro_batch": 3, "dtype": "fp32", "profile": "hf-default"}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3"])
def test_the_first_root_is_the_first_node_that_differs(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, case: str
) -> None:
    checkpoint = request.getfixturevalue(name)
    ids = random_tokens(7, 5)
    report = report_of(tmp_path, checkpoint, *CASES[case], tokens={"input_ids": ids})
    assert report.roots
    values = [everything(checkpoint, ids, side) for side in CASES[case]]
    assert_roots_are_first(report, opened(checkpoint), *values)


def everything(checkpoint: Path, ids: torch.Tensor, side: Side) -> Tensors:
    """Every value of a variant run on its own."""
    return forward(
        opened(checkpoint),
        ids,
        profile=side.get("profile", "hf-eager"),
        dtype=side.get("dtype"),
        micro_batch=side.get("micro_batch"),
        settings=side.get("set"),
        save=["**"],
    )


def assert_roots_are_first(report: Report, model: Model, reference: Tensors, candidate: Tensors) -> None:
    """Of sequences compared together, the first node that differs is a root, and none comes before the first of all."""
    sizes = report.reference.micro_batch, report.candidate.micro_batch
    first = []
    edges = {edge for size in sizes if size for edge in range(0, report.run.sequences, size)}
    for start, end in pairwise([*sorted(edges), report.run.sequences]):
        rows = slice(start, end)
        differing = (node.name for node in model.graph.nodes if differs(node, rows, report, reference, candidate))
        first += [name for name in [next(differing, None)] if name is not None]
    order = [node.name for node in model.graph.nodes]
    roots = [root.node for root in report.roots]
    assert set(first) <= set(roots)
    assert roots == sorted(roots, key=order.index)
    assert roots[:1] == sorted(first, key=order.index)[:1]


def differs(node: Node, rows: slice, report: Report, reference: Tensors, candidate: Tensors) -> bool:
    def part(tensors: Tensors, value: str) -> torch.Tensor:
        x = tensors[file_key(value)]
        # Routes come as one row per token.
        return (x if x.shape[0] == report.run.sequences else x.view(report.run.sequences, -1, x.shape[-1]))[rows]

    return not all(same_bits(part(reference, value), part(candidate, value)) for value in node.values)


def test_a_mixture_that_cannot_run_is_said_and_the_rest_goes_on(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Rows of 36 elements fit torch's grouped GEMM in fp32 only: bf16 with `grouped` is a mixture of both sides."""
    folder = make_small("qwen3_moe_even", tmp_path_factory.mktemp("qwen3_moe_even"))
    report = report_of(tmp_path, folder, {"dtype": "fp32", "profile": "hf-default"}, {"dtype": "bf16"})
    refused = {t.name: (t.alone is None, t.restored is None) for t in report.toggles if not (t.alone and t.restored)}
    assert refused == {"op experts:implementation": (False, True), "dtype": (True, False)}
    assert report.verdict.status in {"pass", "fail", "inconclusive"}
    assert any("refuses" in sentence for sentence in report.reading)


def test_a_root_that_only_widens_says_so(tmp_path: Path, qwen3_moe: Path) -> None:
    report = report_of(tmp_path, qwen3_moe, {}, {"set": {"embed:output": "fp32"}})
    assert (report.roots[0].node, report.roots[0].same_values) == ("embed", True)
    assert report.reading
    narrow = report_of(tmp_path, qwen3_moe, {}, ACCUMULATE)
    assert not narrow.roots[0].same_values


def test_other_experts_of_the_same_weights_are_no_equal_values(tmp_path: Path, qwen3_moe: Path) -> None:
    """A gate of zeros ties all experts: the tie-break changes the ids, and no weight."""
    tied = tmp_path / "tied"
    shutil.copytree(qwen3_moe, tied)
    tensors = load_file(tied / "model.safetensors")
    gates = {name: torch.zeros_like(tensor) for name, tensor in tensors.items() if name.endswith("mlp.gate.weight")}
    assert gates
    save_file(tensors | gates, tied / "model.safetensors")
    sides = ({"set": {"layers[*].moe.router:tie_break": rule}} for rule in ("lowest_index", "highest_index"))
    root, *_ = report_of(tmp_path, tied, *sides).roots
    assert (root.op, root.same_values) == ("router", False)


def test_a_toggle_is_named_after_the_side_that_singles_out_nodes(tmp_path: Path, qwen3_moe: Path) -> None:
    report = report_of(tmp_path, qwen3_moe, ACCUMULATE, {})
    assert [toggle.name for toggle in report.toggles] == ["layers[*].moe.combine:accumulate"]
